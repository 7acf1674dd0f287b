const CAPS = [
    { code: "KeyW", face: "W", name: "W", place: [2, 1] },
    { code: "KeyA", face: "A", name: "A", place: [1, 2] },
    { code: "KeyS", face: "S", name: "S", place: [2, 2] },
    { code: "KeyD", face: "D", name: "D", place: [3, 2] },
    { code: "ArrowUp", face: "↑", name: "Arrow up", place: [5, 1] },
    { code: "ArrowLeft", face: "←", name: "Arrow left", place: [4, 2] },
    { code: "ArrowDown", face: "↓", name: "Arrow down", place: [5, 2] },
    { code: "ArrowRight", face: "→", name: "Arrow right", place: [6, 2] },
];
/** The model's keys as buttons: they show what is held, and can be held with a finger. */
export class KeyCaps {
    room;
    buttons = new Map();
    constructor(room) {
        this.room = room;
    }
    show(codes, takesPointer, controls) {
        this.hide();
        for (const cap of CAPS.filter(({ code }) => codes.includes(code)))
            this.add(cap, controls);
        const hint = document.createElement("p");
        hint.textContent = takesPointer ? "Click the picture to look around; Esc frees the pointer." : "Keys work while this page has the focus.";
        this.room.append(hint);
        this.room.hidden = this.buttons.size === 0 && !takesPointer;
    }
    hold(held) {
        for (const [code, button] of this.buttons)
            button.dataset["held"] = String(held.has(code));
    }
    hide() {
        this.buttons.clear();
        this.room.replaceChildren();
        this.room.hidden = true;
    }
    add({ code, face, name, place }, controls) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = face;
        button.setAttribute("aria-label", name);
        button.style.gridColumn = String(place[0]);
        button.style.gridRow = String(place[1]);
        button.addEventListener("pointerdown", (event) => {
            button.setPointerCapture(event.pointerId);
            controls.press(code);
        });
        for (const type of ["pointerup", "pointercancel", "lostpointercapture"])
            button.addEventListener(type, () => controls.release(code));
        this.buttons.set(code, button);
        this.room.append(button);
    }
}
