/**
 * What the compiler knows of a typed answer: its type is in the result with the option alone, decoded where a program
 * gets it, and encoded in events.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"
import type * as Scope from "effect/Scope"
import { type Adapter, Chat, type Event, Output, Session, type Tool } from "heddle"
import { describe, expect, test } from "tstyche"

class Cities extends Context.Service<Cities, { readonly known: ReadonlyArray<string> }>()("test/Cities") {}

const output = Output.make(Schema.Struct({ celsius: Schema.FiniteFromString }))

interface Weather {
  readonly celsius: number
}

declare const session: Session.Session
declare const kept: Session.Claimed
declare const tools: ReadonlyArray<Tool.Any>

const City = Schema.String.pipe(
  Schema.decodeTo(Schema.String, {
    decode: SchemaGetter.transformEffect((city: string) => Cities.useSync(() => city)),
    encode: SchemaGetter.passthrough()
  })
)

describe("the output of a result", () => {
  test("G63: is there with the option alone, and decoded", () => {
    expect(Chat.run("go", { output })).type.toBe<Effect.Effect<Chat.Result<Weather>, Chat.ChatError, Adapter.Adapter>>()
    expect<Chat.Result<Weather>["output"]>().type.toBe<Weather | undefined>()
    expect(Chat.run("go")).type.toBe<Effect.Effect<Event.ChatResult, Chat.ChatError, Adapter.Adapter>>()
    expect(Chat.run("go", { output: undefined })).type.toBe<
      Effect.Effect<Event.ChatResult, Chat.ChatError, Adapter.Adapter>
    >()
  })

  test("G63: is encoded, so of no known type, in events", () => {
    expect<Event.Of<"ChatCompleted">["result"]["output"]>().type.toBe<unknown>()
    expect<Event.Of<"OutputCompleted">["value"]>().type.toBe<unknown>()
  })

  test("G63: is decoded by a handle and by each way to run a session", () => {
    expect<Effect.Success<ReturnType<typeof started>>["result"]>().type.toBeAssignableTo<
      Effect.Effect<Chat.Result<Weather>, Chat.ChatError>
    >()
    expect<Effect.Success<ReturnType<typeof replied>>["result"]>().type.toBe<Chat.Result<Weather>>()
    expect<Effect.Success<ReturnType<typeof continued>>["result"]>().type.toBe<Chat.Result<Weather>>()
    expect<Effect.Success<ReturnType<typeof resumed>>["value"]["result"]>().type.toBe<Chat.Result<Weather>>()
  })

  test("G63: is given by Output.get, or the reason why there is none", () => {
    expect(Output.get({} as Chat.Result<Weather>)).type.toBe<Effect.Effect<Weather, Output.Missing>>()
  })

  test("G63: needs what its schema needs", () => {
    expect(Output.make(City)).type.toBe<Output.Output<string, Cities>>()
    expect<Effect.Services<ReturnType<typeof located>>>().type.toBe<Adapter.Adapter | Cities>()
  })
})

const started = () =>
  Chat.start("go", { output }) satisfies Effect.Effect<unknown, unknown, Adapter.Adapter | Scope.Scope>
const replied = () => Session.reply(session, "go", { output, tools })
const continued = () => Session.continue(session, null, { output })
const resumed = () => Session.resume(kept, { output })
const located = () => Chat.run("go", { output: Output.make(City) })
