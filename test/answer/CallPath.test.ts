/** Names of calls: any path has one, and no two paths share one, whatever ids models and clients choose. */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import * as CallPaths from "../../src/internal/answer/callPath.ts"

const pieces = Schema.Literals(["a", "%", "/", "~", "%2F", "%25", "%7e", "\u00e9", "\ud83d", "\ude00", "\u0000", "0"])

const texts = Schema.Array(pieces).check(Schema.isMaxLength(3))

const paths = Schema.Struct({
  run: Schema.Option(texts),
  path: Schema.NonEmptyArray(texts).check(Schema.isMaxLength(4))
})

const pathOf = ({ path, run }: typeof paths.Type): CallPaths.CallPath => ({
  ...(run._tag === "None" ? {} : { run: run.value.join("") }),
  path: path.map((pieces) => pieces.join(""))
})

describe("call names", () => {
  it("a call name shows ids unchanged unless they contain a separator", () => {
    assert.strictEqual(CallPaths.format({ path: ["pay:0"] }), "pay:0")
    assert.strictEqual(CallPaths.format({ run: "r1", path: ["c0", "call_1_1"] }), "r1~c0/call_1_1")
    assert.strictEqual(CallPaths.format({ run: "r/1", path: ["a/b", "100%~"] }), "r%2F1~a%2Fb/100%25%7E")
  })

  it.prop("a path is read back from its name, and only a path of one id names an own call", [paths], ([drawn]) => {
    const path = pathOf(drawn)
    const name = CallPaths.format(path)
    assert.deepStrictEqual(CallPaths.parse(name), path)
    assert.strictEqual(CallPaths.ownCall(name), path.path.length === 1 ? path.path[0] : undefined)
  })

  it.prop("different paths have different names", [paths, paths], ([one, other]) => {
    const [left, right] = [pathOf(one), pathOf(other)]
    assert.strictEqual(
      CallPaths.format(left) === CallPaths.format(right),
      JSON.stringify([left.run, left.path]) === JSON.stringify([right.run, right.path])
    )
  })

  it.prop("a text that is not a name has no path, and no path has two names", [texts], ([pieces]) => {
    const text = pieces.join("")
    const path = CallPaths.parse(text)
    if (path !== undefined) assert.strictEqual(CallPaths.format(path), text)
  })

  it("other spellings of a name are refused", () => {
    for (const name of ["a%2fb", "%", "%2", "%zz", "a~b~c", "a/b~c", "%61"]) {
      assert.isUndefined(CallPaths.parse(name), name)
      assert.isUndefined(CallPaths.ownCall(name), name)
    }
  })

  it("an id of any length has a name", () => {
    const path = ["x/".repeat(500_000), "", "\u0000"]
    assert.deepStrictEqual(CallPaths.parse(CallPaths.format({ run: "", path })), { run: "", path })
  })
})
