/**
 * One reply in each of the four wire protocols: it says something, makes a call whose arguments are final before the
 * reply ends, and says something more. Servers of tests write it piece by piece.
 */
import type * as Layer from "effect/Layer"
import type { Adapter } from "heddle"
import * as Anthropic from "./anthropic.ts"
import * as Gemini from "./gemini.ts"
import * as OpenAiChat from "./openAiChat.ts"
import * as OpenAiResponses from "./openAiResponses.ts"

type Json = Readonly<Record<string, unknown>>

/** A reply as a server writes it: each piece is one event of the wire. */
export interface Wire {
  readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
  /** Text, and a call of the tool `look` that may start now. */
  readonly calling: ReadonlyArray<string>
  /** More text, and the end of the reply. */
  readonly rest: ReadonlyArray<string>
  /** A whole reply without calls. */
  readonly answer: ReadonlyArray<string>
}

const options = { retries: 0 }

const anthropic = (...events: ReadonlyArray<Json>) => events.map((event) => Anthropic.body(event))
const chunks = (...events: ReadonlyArray<Json>) => events.map((event) => `data: ${JSON.stringify(event)}\n\n`)
const responses = (...events: ReadonlyArray<Json>) => events.map((event) => OpenAiResponses.body(event))
const gemini = (...events: ReadonlyArray<Json>) => events.map((event) => Gemini.body(event))

const { added, args, call, completed, created, done, message, said } = OpenAiResponses

export const wires: { readonly [protocol: string]: Wire } = {
  OpenAiChat: {
    layer: (url) => OpenAiChat.layer(url, options),
    // A call is final when the next one begins.
    calling: chunks(
      OpenAiChat.said("One "),
      OpenAiChat.call({ index: 0, id: "a", type: "function", name: "look", arguments: "{}" }),
      OpenAiChat.call({ index: 1, id: "b", type: "function", name: "note", arguments: "" })
    ),
    rest: [
      ...chunks(OpenAiChat.call({ index: 1, arguments: "{" }), OpenAiChat.call({ index: 1, arguments: "}" })),
      ...chunks(OpenAiChat.finish("tool_calls")),
      "data: [DONE]\n\n"
    ],
    answer: [...chunks(OpenAiChat.said("Done."), OpenAiChat.finish("stop")), "data: [DONE]\n\n"]
  },
  OpenAiResponses: {
    layer: (url) => OpenAiResponses.layer(url, options),
    calling: responses(
      created,
      added(0, message("")),
      said("One ", 0),
      done(0, message("One ")),
      added(1, call("a", "look")),
      args(1, "{}"),
      done(1, call("a", "look", "{}"))
    ),
    rest: responses(
      added(2, call("b", "note")),
      args(2, "{"),
      args(2, "}"),
      done(2, call("b", "note", "{}")),
      completed({ output: [message("One "), call("a", "look", "{}"), call("b", "note", "{}")] })
    ),
    answer: responses(created, added(0, message("")), said("Done."), done(0, message("Done.")), completed())
  },
  Anthropic: {
    layer: (url) => Anthropic.layer(url, options),
    calling: anthropic(Anthropic.start(), ...Anthropic.text(0, "One "), ...Anthropic.called(1, "a", "look", "{}")),
    rest: anthropic(...Anthropic.called(2, "b", "note", "{", "}"), ...Anthropic.ended("tool_use")),
    answer: anthropic(Anthropic.start(), ...Anthropic.text(0, "Done."), ...Anthropic.ended("end_turn"))
  },
  Gemini: {
    layer: (url) => Gemini.layer(url, options),
    calling: gemini(Gemini.said("One "), Gemini.chunk([Gemini.call("look", {})])),
    rest: gemini(Gemini.said("two"), Gemini.chunk([Gemini.call("note", {})]), Gemini.finish("STOP")),
    answer: gemini(Gemini.said("Done."), Gemini.finish("STOP"))
  }
}
