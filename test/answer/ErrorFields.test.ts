/** What may be shown of an error: the fields that its schema writes or that are plain, and nothing it carries along. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { errorFields } from "../../src/internal/answer/errorFields.ts"

const secret = "sk-ANTIQUE-LOOM"

class Missing extends Schema.TaggedError<Missing>()("Missing", {
  path: Schema.String,
  at: Schema.Date,
  size: Schema.BigInt,
  nested: Schema.Struct({ tries: Schema.Array(Schema.Finite) })
}) {}

const missing = (path = "/a") => new Missing({ path, at: new Date(0), size: 7n, nested: { tries: [1, 2] } })

describe("errorFields", () => {
  it("M-10: an error with a schema is shown in the form of its schema", () => {
    assert.deepStrictEqual(errorFields(missing()), {
      _tag: "Missing",
      name: "Missing",
      message: "",
      path: "/a",
      at: "1970-01-01T00:00:00.000Z",
      size: "7",
      nested: { tries: [1, 2] }
    })
  })

  it("M-10: only texts, numbers and booleans of any other error are shown", () => {
    class Busy extends Data.TaggedError("Busy")<Readonly<Record<string, unknown>>> {}
    const fields = {
      port: 80,
      host: "loom",
      isLocal: true,
      ratio: Number.NaN,
      big: 5n,
      at: new Date(0),
      headers: { authorization: secret },
      list: [secret],
      token: Redacted.make(secret),
      cause: secret,
      stack: secret,
      request: { url: secret },
      response: { body: secret }
    }
    const shown = { port: 80, host: "loom", isLocal: true, ratio: "NaN" }
    assert.deepStrictEqual(errorFields(new Busy(fields)), { _tag: "Busy", name: "Busy", message: "", ...shown })
    assert.deepStrictEqual(errorFields(Object.assign(new TypeError("odd", { cause: secret }), fields)), {
      name: "TypeError",
      message: "odd",
      ...shown
    })
  })

  it("M-10: the error of a failed request does not show the key in its URL", () => {
    for (const url of [`https://api.test/v1?key=${secret}&page=2`, `https://me:${secret}@api.test/v1?q=${secret}`]) {
      const error = new HttpClientError.HttpClientError({
        reason: new HttpClientError.TransportError({
          request: HttpClientRequest.get(url, { headers: { authorization: secret } }),
          cause: new Error(secret),
          description: "refused"
        })
      })
      const fields = errorFields(error)
      assert.notInclude(JSON.stringify(fields), secret)
      assert.strictEqual(fields["_tag"], "HttpClientError")
      assert.match(String(fields["message"]), /refused.*api\.test\/v1/)
    }
    const plain = errorFields(new Error(`GET https://api.test/v1?page=2&api_key=${secret}&x=1 failed`))
    assert.strictEqual(plain["message"], "GET https://api.test/v1?page=2&api_key=REDACTED&x=1 failed")
  })

  it("M-10: a declared cause, stack or request is left out, and a redacted field is hidden", () => {
    class Refused extends Schema.TaggedError<Refused>()("Refused", {
      why: Schema.String,
      cause: Schema.Defect(),
      request: Schema.Struct({ url: Schema.String }),
      login: Schema.Struct({ password: Schema.Redacted(Schema.String) }),
      inner: Schema.Struct({ stack: Schema.String, line: Schema.Finite })
    }) {}
    const error = new Refused({
      why: "closed",
      cause: new Error(secret),
      request: { url: secret },
      login: { password: Redacted.make(secret) },
      inner: { stack: secret, line: 3 }
    })
    assert.deepStrictEqual(errorFields(error), {
      _tag: "Refused",
      name: "Refused",
      message: "",
      why: "closed",
      login: "<redacted>",
      inner: { line: 3 }
    })
  })

  it("M-11: an exception of unknown type is shown as the thrown value", () => {
    const refused = Object.assign(new RangeError("refused"), { code: "E1" })
    const shown = { name: "RangeError", message: "refused", code: "E1" }
    assert.deepStrictEqual(
      errorFields(new Cause.UnknownError(refused, "An error occurred in Effect.tryPromise")),
      shown
    )
    assert.deepStrictEqual(errorFields(new Cause.UnknownError(new Cause.UnknownError(refused))), shown)
    assert.deepInclude(errorFields(new Cause.UnknownError("no line", "An error occurred")), { message: "no line" })
    assert.deepInclude(errorFields(new Cause.UnknownError(undefined, "An error occurred")), {
      message: "An error occurred"
    })
  })

  it("M-10: at most 8,192 characters are shown, and short fields before a long one are shown whole", () => {
    const long = "\u0001🧵\"".repeat(100_000)
    const errors = [
      missing(long),
      new Error(long),
      Object.assign(new Error("short"), { code: 7, long, after: 1 }),
      Object.assign(
        new Error("many"),
        Object.fromEntries(Array.from({ length: 20_000 }, (_, index) => [`k${index}`, index]))
      )
    ]
    for (const error of errors) {
      const text = JSON.stringify(errorFields(error))
      assert.isAtMost(text.length, 8_192)
      assert.isAbove(text.length, 7_000)
      assert.doesNotThrow(() => encodeURIComponent(text))
    }
    assert.deepInclude(errorFields(errors[2] as Error), { message: "short", code: 7 })
  })

  it("M-10: a hostile error is shown without an exception and pollutes no prototype", () => {
    const hostile = {
      get message() {
        throw new Error("no")
      },
      get constructor() {
        throw new Error("no")
      }
    }
    const { proxy, revoke } = Proxy.revocable({}, {})
    revoke()
    const polluting = Object.assign(new Error("p"), JSON.parse("{\"__proto__\":{\"polluted\":1}}") as object)
    const unwritable = Object.setPrototypeOf({ path: 3 }, Missing.prototype) as object
    let deep: unknown = secret
    for (let depth = 0; depth < 50_000; depth++) deep = { deep }
    const cyclic: Record<string, unknown> = { line: 1 }
    cyclic["self"] = cyclic
    for (const value of [hostile, proxy, polluting, cyclic, Object.create(null) as object, unwritable, { deep }]) {
      assert.doesNotThrow(() => JSON.stringify(errorFields(value)))
    }
    assert.strictEqual(({} as Record<string, unknown>)["polluted"], undefined)
    assert.deepInclude(errorFields(unwritable), { name: "Missing", path: 3 })
  })
})
