/**
 * The client that makes a call, and what it may.
 *
 * @since 0.1.0
 */
import * as McpSchema from "effect/ai/McpSchema"
import type * as McpEffect from "effect/ai/McpServer"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as HttpServerRequest from "effect/http/HttpServerRequest"
import type * as Access from "../../server/internal/access.ts"
import type * as Refusals from "../../server/internal/refusal.ts"

/** The client of a request. */
export interface Caller {
  /** The principal that asks. */
  readonly by: string
  /** The principal for which it acts. */
  readonly principal: string
  readonly request: HttpServerRequest.HttpServerRequest
  /** The way that its messages take, as spans name it. */
  readonly transport: "tcp" | "pipe"
  /** The id of its message, where that is known. */
  readonly messageId?: string | undefined
  /** Asks whether the client may do something. */
  readonly may: (question: Access.Question) => Effect.Effect<unknown, Refusals.Refusal>
  /** The questions that wait in the session of a client of the legacy era. */
  readonly waiting: Set<Access.Question>
}

/** The client at the other end of the standard input, which has started this process. */
export const local: Caller = {
  by: "local",
  principal: "local",
  request: HttpServerRequest.fromWeb(new Request("http://localhost/mcp")),
  transport: "pipe",
  may: () => Effect.void,
  waiting: new Set()
}

/** The client of the request under way. */
export const Current: Context.Reference<Caller> = Context.Reference("heddle/mcp/Caller", {
  defaultValue: () => local
})

/** Asks the user of a client. Meanwhile its session takes an answer from those only who may give it. */
export const asking = <A, E, R>(
  { waiting }: Caller,
  question: Access.Question,
  ask: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.acquireUseRelease(
    Effect.sync(() => waiting.add(question)),
    () => ask,
    () => Effect.sync(() => waiting.delete(question))
  )

/** The report of the progress of a call to its client, which it gets where it has asked for it. */
export interface Progress {
  readonly report: (value: unknown) => Effect.Effect<void>
}

const textOf = (value: unknown): string => typeof value === "string" ? value : JSON.stringify(value) ?? ""

/** Reads progress that has the form of the protocol. */
const numbered = (
  value: unknown
): { readonly progress: number; readonly total?: number; readonly message?: string } | undefined => {
  if (typeof value === "number") return { progress: value }
  if (typeof value !== "object" || value === null) return undefined
  const { message, progress, total } = value as Record<string, unknown>
  if (typeof progress !== "number" || !Number.isFinite(progress)) return undefined
  return {
    progress,
    ...(typeof total === "number" ? { total } : {}),
    ...(typeof message === "string" ? { message } : {})
  }
}

/** Returns the report of progress to the client of a call. */
export const progress = (
  server: McpEffect.McpServer["Service"],
  context: McpSchema.McpRequestContext["Service"]
): Progress => {
  const { progressToken } = { ...context.requestMetadata } as { readonly progressToken?: string | number }
  let count = 0
  return {
    report: (value) =>
      Effect.suspend(() => {
        if (progressToken === undefined) return Effect.void
        const sent = numbered(value) ?? { progress: ++count, message: textOf(value) }
        const notice = server.notifications["notifications/progress"]({ progressToken, ...sent })
        return Effect.provideService(Effect.ignore(notice), McpSchema.McpRequestContext, context)
      })
  }
}
