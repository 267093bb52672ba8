/**
 * The typed answer rule: how the model is asked, what counts as an answer, what follows a misfit, and partial answers.
 * It comes with the value of `Output.make`, so runs without a typed answer do not load it.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Allow, parse } from "partial-json"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import { isObject, objectOf } from "../declare/jsonSchema.ts"
import * as Schemas from "../declare/schema.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import {
  type Ask,
  type Asked,
  type At,
  end,
  last,
  type Next,
  noteIn,
  offering,
  type OutputStart,
  type Rule
} from "./rules.ts"

export const name = "output"

/** Ways to ask for a typed answer. */
type Mode = "native" | "tool" | "finalize"

/** A typed answer, as seen by the loop. */
export interface Definition {
  readonly mode: "auto" | Mode
  readonly retries: number
  readonly name: string
  readonly description: string | undefined
  readonly toolName: string
  readonly form: Form
  readonly tool: Tool.Any | undefined
}

/** The answer on the wire, and as a value. */
interface Form {
  /** `true` if the answer is a member of the wire object. */
  readonly isWrapped: boolean
  /** Wire schema. */
  readonly schema: Schema.Constraint
  /** JSON Schema of the answer on the wire: an object. */
  readonly jsonSchema: Json.JsonObject
  /** Returns the answer as JSON, from the decoded wire value. Fails if the schema has no way back. */
  readonly write: (value: any) => Effect.Effect<Schema.Json, Error, any>
  /** Returns the answer as JSON, from the wire value. Fails with a description of the misfit. */
  readonly read: (wire: unknown) => Effect.Effect<Schema.Json, string, any>
  /** Returns the partial answer from a partial wire value, possibly missing. */
  readonly partOf: (wire: unknown) => unknown
}

/** Returns the wire form. A non-object root becomes a member of an object on the wire. */
export const formOf = (schema: Schema.Constraint): Form => {
  const codec = Schemas.jsonCodec(schema as Schema.Top)
  // A union of objects, too: combined into one object it could not be null, and would say less to the model.
  const isWrapped = Result.isFailure(Schemas.parameters(schema)) || !isObject(Schemas.jsonSchemaOf(codec))
  const onWire = isWrapped ? Schema.Struct({ value: schema as Schema.Top }) : schema
  const parameters = Result.getOrThrow(Schemas.parameters(onWire))
  const encode = Schema.encodeUnknownEffect(codec)
  const write: Form["write"] = (value) =>
    Effect.map(encode(isWrapped ? value.value : value), Json.toJson).pipe(
      Effect.mapError(({ message }) => new Error(`the schema cannot encode the answer: ${message}`))
    )
  return {
    isWrapped,
    schema: onWire,
    jsonSchema: Result.getOrElse(objectOf(parameters.jsonSchema), () => parameters.jsonSchema),
    write,
    // A throwing schema refuses the answer, as it refuses call arguments.
    read: (wire) =>
      Effect.suspend(() => Effect.flatMap(parameters.decode(wire), write)).pipe(
        Effect.catchDefect((defect) => Effect.fail(defect instanceof Error ? defect : { message: String(defect) })),
        Effect.mapError((error) => error.message)
      ),
    // A text before calls may begin like JSON, and is no object.
    partOf: (wire) => !Json.isObject(wire) ? undefined : isWrapped ? wire["value"] : wire
  }
}

/** A request's note: how it asked for the answer. */
interface Note {
  readonly mode?: Mode
  /** Number of the repair made by the step. */
  readonly repair?: number
  /**
   * Set after a message asked for the answer call of a last request, because the adapter cannot force the call.
   */
  readonly isInWords?: true
}

const noteOf = (notes: At["noted"]): Note => (noteIn(notes, name) as Note | undefined) ?? {}

/** Returns a request's mode, depending on the adapter. */
const modeOf = (definition: Definition, { adapter, mode, template }: Ask, isAlone: boolean): Mode => {
  if (definition.mode === "finalize" || definition.mode === "native") return definition.mode
  const { native = "never" } = adapter.output ?? {}
  const hasTools = template.tools.some(({ name }) => name !== definition.toolName)
  const isNative = native === "always" || native === "withoutTools" && (isAlone || !hasTools)
  if (mode === "manual") return "native"
  return definition.mode === "auto" && isNative && isHeld(definition, adapter) ? "native" : "tool"
}

/** Returns `true` if the provider can hold the model to the schema. */
const isHeld = ({ form: { jsonSchema } }: Definition, { output }: Adapter.Service): boolean =>
  output?.holds?.(jsonSchema) !== false

/** Throws if the provider cannot hold the model to the schema. The error names the members and definitions at fault. */
const checkHeld = (definition: Definition, { adapter, mode }: Ask): void => {
  if (isHeld(definition, adapter)) return
  const { form: { isWrapped, jsonSchema } } = definition
  const parts = [jsonSchema["properties"], jsonSchema["$defs"]].flatMap((parts) =>
    Json.isObject(parts) ? Object.entries(parts) : []
  )
  const named = parts.flatMap(([name, part]) =>
    adapter.output?.holds?.({ type: "object", properties: { [name]: part }, required: [name] }) === false
      ? [JSON.stringify(name)]
      : []
  )
  const place = named.length === 0 || isWrapped ? "its root" : named.join(", ")
  const remedy = "give each object members with names, each list one form of elements, and each value a type"
  const other = mode === "manual" ? "" : ", or use mode \"tool\""
  throw new TypeError(`output: the provider cannot hold the model to the schema: see ${place}; ${remedy}${other}`)
}

/** Returns a request with the answer format, and without the answer tool. */
const native = (definition: Definition, ask: Ask, isAlone: boolean): Ask => {
  const { description, form: { jsonSchema }, name, toolName } = definition
  const schema = description === undefined ? jsonSchema : { description, ...jsonSchema }
  const isOffered = (tool: string) => tool !== toolName && !(isAlone && ask.adapter.output?.native === "withoutTools")
  const offered = offering(ask, isOffered)
  const template = {
    ...offered.template,
    responseFormat: { type: "json_schema", name, schema, strict: true } as const
  }
  if (template.tools.length === 0) delete (template as { toolChoice?: unknown }).toolChoice
  return { ...offered, template }
}

const inWords = (toolName: string): Message.Message =>
  Message.user(`Give your answer now, by a call of the tool ${JSON.stringify(toolName)}.`)

/** Text asking for the call after an answer as text. */
const notAsText = (toolName: string): string =>
  `Give the answer by a call of the tool ${JSON.stringify(toolName)}, and not as text.`

/** Returns `true` if the latest message asks for the call. */
const isAskedFor = (toolName: string, { thread }: At): boolean => {
  const latest = thread.messages.at(-1)
  return latest?.role === "user" && Message.text(latest) === notAsText(toolName)
}

const described = (tool: Tool.Any) => ToolOptions.definitions(new Map([[tool.name, tool]]), undefined)

/** Returns a request offering the answer tool, even if a step was narrowed to other tools. */
const byTool = (ask: Ask, tool: Tool.Any): Ask =>
  ask.tools.has(tool.name) ? ask : {
    ...ask,
    tools: new Map([...ask.tools, [tool.name, tool]]),
    template: { ...ask.template, tools: [...ask.template.tools, ...described(tool)] }
  }

/** Returns a request with the answer tool alone. */
const byToolAlone = (ask: Ask, tool: Tool.Any, isForced: boolean): Ask => ({
  ...ask,
  tools: new Map([[tool.name, tool]]),
  template: { ...ask.template, tools: described(tool), toolChoice: isForced ? { name: tool.name } : "auto" }
})

/** Returns a request without the answer tool and the answer format. */
const plain = ({ toolName }: Definition, ask: Ask): Ask => offering(ask, (name) => name !== toolName)

const asking = (definition: Definition, ask: Ask, at: At): Ask | Asked => {
  const isClosing = at.last !== undefined
  // A request that forbids calls still wants the answer.
  const isAlone = isClosing || ask.template.toolChoice === "none"
  const noted = noteOf(at.noted)
  // A repeated reply was requested in its recorded mode. A further request may go to another adapter.
  const mode = (at.isRepeated ? noted.mode : undefined) ?? modeOf(definition, ask, isAlone)
  const { repair } = noted
  const attributes = {
    "heddle.output.mode": mode,
    ...(repair === undefined ? {} : { "heddle.output.repairs": repair })
  }
  if (mode !== "tool" && !at.isRepeated) checkHeld(definition, ask)
  const asked = (given: Ask, inWords: ReadonlyArray<Message.Message> = []): Ask | Asked => {
    const ask = { ...given, attributes: { ...given.attributes, ...attributes } }
    const isNoted = noted.mode === mode && inWords.length === 0
    if (isNoted || at.isRepeated) return ask
    const note = { ...noted, mode, ...(inWords.length === 0 ? {} : { isInWords: true }) }
    return { _tag: "Ask", ask, note, ...(inWords.length === 0 ? {} : { messages: inWords }) }
  }
  if (mode === "finalize") return asked(isClosing ? native(definition, ask, true) : plain(definition, ask))
  if (mode === "native") return asked(native(definition, ask, isAlone))
  const { tool, toolName } = definition
  if (tool === undefined) return asked(ask)
  if (!isAlone) return asked(byTool(ask, tool))
  const isForced = ask.adapter.output?.forced === true
  const isAsked = !isClosing || isForced || noted.isInWords === true || isAskedFor(toolName, at)
  return asked(byToolAlone(ask, tool, isForced), isAsked ? [] : [inWords(toolName)])
}

/** Returns the misfit if a step tried to answer by the tool. */
const refusedIn = (
  { toolName }: Definition,
  { response: { toolCalls }, toolResults }: Event.StepResult
): string | undefined => {
  const ids = new Set(toolCalls.flatMap(({ id, name }) => name === toolName ? [id] : []))
  const refused = toolResults.find(({ isError, toolCallId }) => isError === true && ids.has(toolCallId ?? ""))
  return refused === undefined ? undefined : Message.text(refused)
}

/** Returns the answer in a halt by the tool. */
const answerIn = (
  { toolName }: Definition,
  outcome: Event.Outcome,
  { response: { toolCalls } }: Event.StepResult
): { readonly value: Schema.Json } | undefined => {
  if (outcome._tag !== "Halted" || outcome.reason !== name) return undefined
  const call = toolCalls.find(({ id }) => id === outcome.haltToolCallId)
  return call?.name === toolName ? { value: outcome.haltResult as Schema.Json } : undefined
}

const longestText = 2000

/** Decides after a step. `maxTurns` also bounds repairs, which are turns. */
const deciding = (definition: Definition, { maxTurns, prompt }: OutputStart) => {
  const { form, retries, toolName } = definition
  const failed = (issues: string, text: string | null): Next =>
    end({
      _tag: "RuleEnded",
      rule: name,
      status: "error",
      detail: { issues: issues.slice(0, longestText), text: text === null ? null : text.slice(0, longestText) }
    })
  const repaired = (issues: string, message: string | undefined, at: At, text: string | null): Next => {
    const repair = Math.max(0, ...at.notes.map((notes) => noteOf(notes).repair ?? 0)) + 1
    if (repair > retries || (at.last !== undefined && at.last !== name)) return failed(issues, text)
    const messages = message === undefined ? [] : [Message.user(message)]
    if (at.last === name) return last(name, { messages, note: { repair } })
    return at.steps.length < maxTurns ? { _tag: "Go", messages, note: { repair } } : last("max_turns", { messages })
  }
  return (next: Next, at: At): Next | Effect.Effect<Next, never, any> => {
    const step = at.steps.at(-1)
    if (step === undefined) return next
    const mode = noteOf(at.notes.at(-1) ?? {}).mode
    if (next._tag !== "End") {
      const issues = next._tag === "Last" ? undefined : refusedIn(definition, step)
      // The call's answer describes the misfit.
      return issues === undefined ? next : repaired(issues, undefined, at, null)
    }
    const { outcome } = next
    const answer = answerIn(definition, outcome, step)
    if (answer !== undefined) {
      return { ...end({ _tag: "Completed", finishReason: step.response.finishReason }), output: answer.value }
    }
    if (outcome._tag === "RuleEnded" && outcome.rule === name) return failed("there is no answer", null)
    if (mode === "finalize" && at.last === undefined) {
      const isOver = outcome._tag === "Completed" || outcome._tag === "MaxTurns" || outcome._tag === "HaltWhen"
      return isOver ? last(name, { messages: prompt === "" ? [] : [Message.user(prompt)] }) : next
    }
    if (outcome._tag === "MaxTurns" || outcome._tag === "RuleEnded" && outcome.rule === at.last) {
      if (at.last === undefined) return last("max_turns")
      const issues = refusedIn(definition, step)
      return issues === undefined ? next : failed(issues, null)
    }
    if (outcome._tag !== "Completed") return next
    const text = step.response.outputText ?? ""
    if (mode === "tool") {
      return repaired("the answer is text, and no call of the tool for it", notAsText(toolName), at, text)
    }
    const wire = Json.parse(text)
    const read = Result.isFailure(wire)
      ? Effect.fail("the answer is no JSON")
      : form.read(wire.success)
    return Effect.match(read, {
      onSuccess: (value): Next => ({ ...next, output: value }),
      onFailure: (issues) =>
        repaired(issues, `The answer does not fit:\n${issues}\nGive it again, as JSON that fits.`, at, text)
    })
  }
}

// Partial answers.

const everyMillis = 50
const longestPart = 64 * 1024
const partialOf = Allow.ALL & ~Allow.NUM & ~Allow.SPECIAL

/** The first half of a character at the end of a text, as it is or escaped. An escaped backslash escapes nothing. */
const half =
  /(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?<=(?<!\\)(?:\\\\)*\\u.{4})(?:\\(?:u[0-9a-fA-F]{0,3})?)?|[\ud800-\udbff])$/

/** Returns the JSON so far, closed tolerantly, or `undefined` before its start. */
export const partOf = (text: string): unknown => {
  try {
    // The parser makes a `__proto__` member the prototype. Neither an answer nor its parts have such a member.
    // The parser trims spaces at the end of a text, but not before a begun escape: that stands for the half.
    return JSON.parse(JSON.stringify(parse(text.replace(half, "\\"), partialOf)))
  } catch {
    return undefined
  }
}

/** Emits partial answers: at most one per 50 ms, and none beyond 64 KiB of text. */
const hearing = ({ form, toolName }: Definition, now: () => number) => {
  let text = ""
  let call: string | undefined
  let toldAt = -Infinity
  let told = ""
  const grow = (delta: string): ReadonlyArray<Event.Of<"OutputPartial">> => {
    if (text.length > longestPart) return []
    text += delta
    const at = now()
    if (text.length > longestPart || at - toldAt < everyMillis) return []
    const value = form.partOf(partOf(text))
    const shown = value === undefined ? "" : JSON.stringify(value)
    if (shown === told) return []
    toldAt = at
    told = shown
    return [{ _tag: "OutputPartial", value }]
  }
  return (event: Event.Event, { last, noted }: At): ReadonlyArray<Event.Of<"OutputPartial">> => {
    const { mode } = noteOf(noted)
    switch (event._tag) {
      case "MessageStarted":
        text = told = ""
        call = undefined
        toldAt = -Infinity
        return []
      case "TextDelta":
        // The first pass of "finalize" asks for no answer.
        return mode === "native" || mode === "finalize" && last !== undefined ? grow(event.delta) : []
      case "ToolCallStarted":
        if (mode === "tool" && event.name === toolName && call === undefined) {
          call = event.id
          text = told = ""
        }
        return []
      case "ToolCallDelta":
        return event.id === call ? grow(event.argumentsDelta) : []
      default:
        return []
    }
  }
}

/** Returns the rule for a typed answer. */
export const rule = (definition: Definition, start: OutputStart): Rule<never, any> => ({
  name,
  ask: (ask, at) => asking(definition, ask, at),
  hear: hearing(definition, start.now),
  next: deciding(definition, start)
})
