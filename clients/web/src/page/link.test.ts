import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { linkTo, readLink } from "./link.js";

describe("a link for viewers", () => {
  test("says what it was made of, whatever the address was", () => {
    const watched = { sessionId: "a/b &", token: "x.y-_=" };
    const link = linkTo(watched, "https://play.example.org/sub/?q=1#token=secret");
    assert.equal(new URL(link).pathname, "/sub/");
    assert.ok(!link.includes("secret"));
    assert.deepEqual(readLink(new URL(link).hash), watched);
  });

  test("is none where a part is missing", () => {
    for (const hash of ["", "#", "#token=secret", "#watch=a", "#viewer=x", "#watch=&viewer="]) assert.equal(readLink(hash), null);
  });
});
