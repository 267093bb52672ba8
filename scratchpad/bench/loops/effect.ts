/**
 * The floor on Effect: the smallest loop on its `Stream`. One pull is one read of the model, a read stays one array of
 * events, and each tool is a fiber in the stream's scope. No schema, no bound, no timeout: what Effect itself costs.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { Arguments, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Read, Reply } from "../model.ts"
import * as Reading from "./reading.ts"

type Event =
  | { readonly _tag: "Text"; readonly delta: string }
  | { readonly _tag: "Call"; readonly id: string }
  | { readonly _tag: "Result"; readonly id: string; readonly value: Value }

type Events = Arr.NonEmptyReadonlyArray<Event>

interface Call {
  readonly id: string
  readonly name: string
  json: string
}

const execute = (tool: ToolSpecification, { id, json }: Call): Effect.Effect<Event> =>
  Effect.suspend(() => {
    const args = JSON.parse(json) as Arguments
    for (const key in tool.parameters) {
      if (typeof args[key] !== tool.parameters[key]) return Effect.die(new TypeError(`${tool.name}: bad ${key}`))
    }
    const { body } = tool
    return body.type === "synchronous"
      ? Effect.succeed({ _tag: "Result", id, value: body.call(args) })
      : Effect.map(
        Effect.promise((signal) => body.call(args, signal)),
        (value): Event => ({ _tag: "Result", id, value })
      )
  })

/** A run that is driven by pulls. */
class Machine {
  private readonly run: Run
  private readonly tools: ReadonlyMap<string, ToolSpecification>
  private readonly scope: Scope.Scope
  private readonly history: Array<unknown>
  private turnsLeft: number
  private reply: Reply | undefined
  private calls = new Map<string, Call>()
  private fibers: Array<Fiber.Fiber<Event>> = []
  private text = ""

  constructor(run: Run, tools: ReadonlyMap<string, ToolSpecification>, maxTurns: number, scope: Scope.Scope) {
    this.run = run
    this.tools = tools
    this.turnsLeft = maxTurns
    this.scope = scope
    this.history = [{ role: "user", content: run.prompt }]
  }

  readonly pull: Pull.Pull<Events> = Effect.suspend(() => {
    const reply = this.reply ?? this.open()
    return reply === undefined
      ? Cause.done()
      : Effect.flatMap(
        Effect.promise(() => reply.next()),
        ({ value }) => value === undefined ? this.ended() : this.events(value)
      )
  })

  readonly close = Effect.sync(() => {
    void this.reply?.return?.()
  })

  private open(): Reply | undefined {
    if (this.turnsLeft-- > 0) this.reply = this.run.model.request(this.history.length)
    return this.reply
  }

  private events(read: Read): Effect.Effect<Events> {
    const ready: Array<Call> = []
    const events = read.map((chunk) => this.event(chunk, ready)) as unknown as Events
    if (ready.length === 0) return Effect.succeed(events)
    const starting = Effect.forEach(
      ready,
      (call) =>
        Effect.map(
          Effect.forkIn(execute(this.tools.get(call.name)!, call), this.scope, { startImmediately: true }),
          (fiber) => {
            this.fibers.push(fiber)
          }
        ),
      { discard: true }
    )
    return Effect.as(starting, events)
  }

  private event(chunk: Chunk, ready: Array<Call>): Event {
    if (chunk.type === "text") {
      this.text += chunk.delta
      return { _tag: "Text", delta: chunk.delta }
    }
    if (chunk.type === "callStarted") this.calls.set(chunk.id, { id: chunk.id, name: chunk.name, json: "" })
    else if (chunk.type === "callArguments") this.calls.get(chunk.id)!.json += chunk.fragment
    else ready.push(this.calls.get(chunk.id)!)
    return { _tag: "Call", id: chunk.id }
  }

  /** The tools of the turn are waited for; a turn without any is the last. */
  private ended(): Pull.Pull<Events> {
    const { calls, fibers, text } = this
    this.history.push({ role: "assistant", content: text, calls: [...calls.values()] })
    this.reply = undefined
    this.calls = new Map()
    this.fibers = []
    this.text = ""
    if (fibers.length === 0) return Cause.done()
    return Effect.map(Effect.forEach(fibers, Fiber.join), (results) => {
      for (const result of results) {
        if (result._tag === "Result") this.history.push({ role: "tool", content: JSON.stringify(result.value) })
      }
      return results as unknown as Events
    })
  }
}

const stream = (run: Run, tools: ReadonlyMap<string, ToolSpecification>, maxTurns: number): Stream.Stream<Event> =>
  Stream.unwrap(Effect.map(
    Effect.flatMap(
      Effect.scope,
      (scope) =>
        Effect.acquireRelease(Effect.sync(() => new Machine(run, tools, maxTurns, scope)), ({ close }) => close)
    ),
    ({ pull }) => Stream.fromPull(Effect.succeed(pull))
  ))

const tell = (run: Run, event: Event): boolean => {
  if (event._tag === "Text") return run.onText(event.delta)
  if (event._tag === "Result") run.onResult(event.value)
  else run.onEvent()
  return true
}

export const implementation: Implementation = {
  name: "bare Effect",
  kind: "floor",
  guarantees: ["parallel", "closes"],
  make: (specifications, maxTurns) => {
    const tools = new Map(specifications.map((tool) => [tool.name, tool]))
    return Reading.loop((run) => stream(run, tools, maxTurns), tell)
  }
}
