/** What handlers do, and what a call comes to by it. */
import * as Effect from "effect/Effect"
import { Tool } from "heddle"

/** What a call came to, in one word: an outcome, the reason of a `ToolError`, or what the handler reported itself. */
export type Word = "Ok" | "AskUser" | "Halt" | "reported" | Tool.ToolError["reason"]

interface Kind {
  /** What a call of it comes to when it is run, and where results are read as result objects, if that is another. */
  readonly becomes: Word
  readonly becomesAsObject?: Word
  /** What the handler does once it has waited; by default it succeeds. */
  readonly does?: (attempt: number, call: Tool.CallContext) => Effect.Effect<unknown, unknown>
  /** The kinds of the calls in the run that it is, if it is one. Their handlers wait as long as it is told to. */
  readonly inside?: ReadonlyArray<string>
  /** How it waits before that; by default it sleeps for the latency of its call. */
  readonly waits?: Effect.Effect<void>
  /** What it returns instead of an Effect. */
  readonly returns?: unknown
  /** The tool that is called; by default `look` or `work`, by whether the call is read-only. */
  readonly tool?: string
  /** Whether it does not stop when it is told to: `"late"` ends by itself some time later, `"never"` does not. */
  readonly refuses?: "late" | "never"
}

const cycle: { self?: unknown } = {}
cycle.self = cycle

/** Tells what it sees of the context, so that the result shows when an update comes at another time than it should. */
const updating = (call: Tool.CallContext): Effect.Effect<void> =>
  Effect.andThen(
    call.updateContext({ last: call.id, [call.id]: call.context }),
    call.updateContext({ count: Object.keys(call.context).length })
  )

/** The first is the simplest: shrinking goes there. */
const generated = {
  ok: { becomes: "Ok" },
  object: { becomes: "Ok", does: () => Effect.succeed({ celsius: 7, names: ["a", "b"] }) },
  nothing: { becomes: "Ok", does: () => Effect.void },
  fail: { becomes: "reported", does: () => Effect.fail(Symbol.for("not_found")) },
  die: { becomes: "handler_raised", does: () => Effect.die("plain value") },
  throw: {
    becomes: "handler_raised",
    does: () => {
      throw new Error("kaboom")
    }
  },
  exit: { becomes: "handler_exit", does: () => Effect.interrupt },
  invalid: { becomes: "invalid_return", returns: 42 },
  ask: { becomes: "AskUser", does: () => Effect.succeed(Tool.askUser("Which one?", ["a", "b"])) },
  halt: { becomes: "Halt", does: () => Effect.succeed(Tool.halt("done_early", { v: 1 })) },
  reserved: { becomes: "invalid_return", does: () => Effect.succeed(Tool.halt("completed", 1)) },
  unencodable: { becomes: "encoding_failed", does: () => Effect.succeed(cycle) },
  child: { becomes: "Ok", does: () => Effect.as(Effect.forkChild(Effect.never), "child") },
  retry: {
    becomes: "Ok",
    tool: "retry",
    waits: Effect.sleep(10),
    does: (attempt) => attempt < 3 ? Effect.fail(`attempt ${attempt}`) : Effect.succeed(attempt)
  },
  never: { becomes: "timeout", does: () => Effect.never },
  slowStop: { becomes: "timeout", does: () => Effect.onInterrupt(Effect.never, () => Effect.sleep(10)) },
  late: { becomes: "timeout", waits: Effect.uninterruptible(Effect.sleep(303)), refuses: "late" },
  refuse: { becomes: "timeout", waits: Effect.uninterruptible(Effect.never), refuses: "never" },
  block: { becomes: "Ok", tool: "block" },
  update: { becomes: "Ok", does: (_attempt, call) => Effect.as(updating(call), "updated") },
  updateFail: { becomes: "reported", does: (_attempt, call) => Effect.andThen(updating(call), Effect.fail("no")) },
  updateLate: { becomes: "timeout", does: (_attempt, call) => Effect.andThen(updating(call), Effect.never) },
  soft: {
    becomes: "Ok",
    becomesAsObject: "reported",
    does: () => Effect.succeed({ success: false, error: "soft", contextUpdate: { soft: "failed" } })
  },
  softOk: { becomes: "Ok", does: () => Effect.succeed({ data: { n: 1 }, contextUpdate: { soft: "succeeded" } }) },
  agent: { becomes: "Ok", tool: "agent", inside: ["ok", "update"] },
  agentDeep: { becomes: "Ok", tool: "agent", inside: ["agent", "never", "slowStop"] },
  agentDeaf: { becomes: "Ok", tool: "agent", inside: ["ok", "refuse"] },
  agentLost: { becomes: "reported", tool: "agent", inside: [] },
  unknown: { becomes: "unknown_tool", tool: "nobody" },
  misnamed: { becomes: "unknown_tool", tool: "functions.work" },
  manual: { becomes: "Ok", tool: "manual" },
  badArguments: { becomes: "invalid_arguments" }
} satisfies { readonly [name: string]: Kind }

/** What only planted handlers do, and those that are told by another name than they were generated under. */
const planted = {
  slowBlock: { becomes: "timeout", refuses: "late" },
  leak: {
    becomes: "Ok",
    does: () => Effect.asVoid(Effect.forkDetach(Effect.sleep(10_000), { startImmediately: true }))
  }
} satisfies { readonly [name: string]: Kind }

export type KindName = keyof typeof generated | keyof typeof planted

export const kinds: { readonly [Name in KindName]: Kind } = { ...generated, ...planted }

/** The names of the kinds that are generated. */
export const kindNames = Object.keys(generated) as ReadonlyArray<keyof typeof generated>
