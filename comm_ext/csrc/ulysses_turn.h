// Whether copies into a region's next slot are known to be safe. Host compilers read this too.
//
// Slots are used in turn, so a slot's readers are done by the time it is written again, if the uses in between happened as
// the host saw them. It does not see replays of a recording: a use is certain only if `slots` uses in a row came before it
// in the same recording, or outside of any while there never was one.
#pragma once
#include <stdint.h>

typedef struct UlTurn {
  uint64_t recording;  // the graph recording of the newest use; 0: none
  uint32_t run;        // uses in a row of which the host knows that nothing came between
  uint32_t recorded;   // whether any use was ever recorded
} UlTurn;

// Count a use; whether it needs the opening barrier.
static inline int ul_must_open(UlTurn* turn, uint64_t recording, uint32_t slots) {
  if (recording != turn->recording || (recording == 0 && turn->recorded)) turn->run = 0;
  turn->recording = recording;
  if (recording != 0) turn->recorded = 1;
  if (turn->run <= slots) ++turn->run;
  return turn->run <= slots;
}
