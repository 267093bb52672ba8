/**
 * `heddle sessions`: an operator's queries and actions on sessions in a store.
 */
import * as Clock from "effect/Clock"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Journal from "../../Journal.ts"
import * as Message from "../../Message.ts"
import * as Lists from "../../server/internal/lists.ts"
import * as Session from "../../Session.ts"
import * as Conversations from "./conversation.ts"
import type * as Definitions from "./definition.ts"
import * as Problems from "./problem.ts"

/** Returns a time in UTC, marked as UTC. */
const dateOf = (millis: number): string => `${new Date(millis).toISOString().replace("T", " ").slice(0, 19)}Z`

const json = (value: unknown) => Console.log(JSON.stringify(value, undefined, 2))

/** Selects the sessions for a list to print. */
export interface Listing {
  readonly principal: string
  readonly search: Lists.Search
  readonly isJson: boolean
}

/** Reads list options in the same way as the route reads URL parameters. */
export const searchOf = (
  options: Readonly<Record<"next" | "query" | "status", Option.Option<string>>>
): Effect.Effect<Lists.Search, Problems.Problem> => {
  const given = Object.entries(options).flatMap(([name, value]) => Option.isSome(value) ? [[name, value.value]] : [])
  return Effect.mapError(
    Effect.fromResult(Lists.searchOf(new URLSearchParams(given))),
    ({ message }) => Problems.problem(`--${message.replace(/\.$/, "")}`)
  )
}

/** Prints a page of a principal's sessions, agent by agent: pinned sessions first, then the newest. */
export const list = ({ agents }: Definitions.Loaded, { isJson, principal, search }: Listing) =>
  Effect.gen(function*() {
    let count = 0
    const all: Array<object> = []
    for (const agent of agents.keys()) {
      const { next, sessions } = yield* Lists.list(principal, agent, search)
      for (const { updatedAt, ...each } of sessions) {
        count++
        all.push({ ...each, updatedAt: new Date(updatedAt).toISOString() })
        const line = [each.id, agent, each.next, dateOf(updatedAt), Problems.oneLine(each.title)]
        if (!isJson) yield* Console.log(line.join("\t"))
      }
      if (next !== undefined) yield* Console.error(`${agent} has more: --next ${next}`)
    }
    const { query = "", status } = search
    const which = `${status === undefined ? "" : ` in status ${status}`}${
      query === "" ? "" : ` with ${JSON.stringify(Problems.oneLine(query))}`
    }`
    if (count === 0) yield* Console.error(`there are no sessions of ${Problems.oneLine(principal)}${which}`)
    if (isJson) yield* json(all)
    return 0
  })

/** Returns an existing session. */
const found = ({ id, principal }: Named) =>
  Effect.flatMap(Session.load(Conversations.keyOf({ id, principal })), (kept) =>
    kept === undefined
      ? Problems.problem(`there is no session ${id} of ${Problems.oneLine(principal)}`)
      : Effect.succeed(kept))

/** Session of a command. */
export interface Named {
  readonly id: string
  readonly principal: string
}

const claimOf = (claim: Journal.Claim | undefined, now: number): string =>
  claim === undefined
    ? "none"
    : `${Problems.oneLine(claim.owner)} until ${dateOf(claim.until)}${claim.until <= now ? " (over)" : ""}`

/** Prints a session: its state, its open calls, its claim and its messages. */
export const show = (named: Named, isJson: boolean) =>
  Effect.gen(function*() {
    const kept = yield* found(named)
    const inspected = yield* Session.inspect(kept.id)
    const now = yield* Clock.currentTimeMillis
    const { origin, session } = kept
    if (isJson) {
      const { calls = [], claim, resumptions = 0 } = inspected ?? {}
      yield* json({
        ...Conversations.jsonOf({ id: named.id, agent: origin.agent ?? "" }, kept),
        resumptions,
        ...(claim === undefined
          ? {}
          : { claim: { owner: claim.owner, until: new Date(claim.until).toISOString(), isOver: claim.until <= now } }),
        calls: calls.map(({ attempt, state, toolCall }) => ({
          state,
          attempt,
          name: toolCall.name,
          arguments: toolCall.arguments
        })),
        submitted: kept.submitted?.map(({ message }) => message.content) ?? [],
        messages: session.thread.messages.map(({ content, role, toolCallId, toolCalls }) => ({
          role,
          content,
          toolCallId,
          toolCalls: toolCalls?.map(({ arguments: args, id, name }) => ({ id, name, arguments: args }))
        }))
      })
      return 0
    }
    yield* Console.log(`session      ${named.id}`)
    yield* Console.log(`agent        ${Problems.oneLine(origin.agent ?? "")}`)
    yield* Console.log(`status       ${session.status}`)
    yield* Console.log(`next         ${Session.next(kept)}`)
    yield* Console.log(`resumptions  ${inspected?.resumptions ?? 0}`)
    yield* Console.log(`claim        ${claimOf(inspected?.claim, now)}`)
    for (const { attempt, state, toolCall } of inspected?.calls ?? []) {
      const args = Problems.oneLine(JSON.stringify(toolCall.arguments))
      yield* Console.log(`call         ${state}, attempt ${attempt}: ${Problems.oneLine(toolCall.name)} ${args}`)
    }
    for (const { kind, question, toolCall } of session.suspensions) {
      yield* Console.log(`waits        ${kind}: ${Problems.oneLine(question ?? toolCall.name)}`)
    }
    for (const { message } of kept.submitted ?? []) {
      yield* Console.log(`submitted    ${Problems.oneLine(Message.text(message))}`)
    }
    for (const message of session.thread.messages) {
      const calls = message.toolCalls?.map(({ name }) => name).join(", ")
      const text = Problems.oneLine(Message.text(message))
      yield* Console.log(
        `${message.role.padEnd(12)} ${text}${calls === undefined ? "" : ` [${Problems.oneLine(calls)}]`}`
      )
    }
    return 0
  })

const listOf = (name: string, ids: ReadonlyArray<string>): ReadonlyArray<string> =>
  ids.length === 0 ? [] : [`${name}: ${ids.map(Problems.oneLine).join(", ")}`]

/** Asks a session's run to stop, and prints the report if a process drives the run. */
export const stop = (named: Named, isJson: boolean) =>
  Effect.gen(function*() {
    const kept = yield* found(named)
    const receipt = yield* Session.stop(kept.id, { by: named.principal })
    if (isJson) {
      const claim = (yield* Session.inspect(kept.id))?.claim
      const isDriven = claim !== undefined && claim.until > (yield* Clock.currentTimeMillis)
      const isStopping = receipt.id !== undefined
      yield* json({ id: named.id, isStopping, ...(isStopping && isDriven ? { ended: yield* receipt.ended } : {}) })
      return 0
    }
    if (receipt.id === undefined) {
      yield* Console.log("no run is open")
      return 0
    }
    const claim = (yield* Session.inspect(kept.id))?.claim
    if (claim === undefined || claim.until <= (yield* Clock.currentTimeMillis)) {
      yield* Console.log("the stop is recorded; no process drives the run now, and the next owner stops the run")
      return 0
    }
    yield* Console.log("the stop is recorded")
    const { ended, refused, stopped, unknown } = yield* receipt.ended
    const report = [
      ...listOf("stopped", stopped),
      ...listOf("ended before", ended),
      ...listOf("refused to stop", refused),
      ...listOf("unknown", unknown)
    ]
    yield* Console.log(["the run has ended", ...report].join("\n"))
    return 0
  })

/** Takes a session's claim away from its owner. */
export const revoke = (named: Named, isJson: boolean) =>
  Effect.gen(function*() {
    const kept = yield* found(named)
    const isRevoked = yield* Session.revoke(kept.id)
    if (isJson) yield* json({ id: named.id, isRevoked })
    else yield* Console.log(isRevoked ? "the claim is revoked" : "the session has no claim")
    return 0
  })

/** Removes a session without an open run. */
export const remove = (named: Named, isJson: boolean) =>
  Effect.gen(function*() {
    const kept = yield* found(named)
    if (kept.interrupted !== undefined) {
      return yield* Problems.problem(`session ${named.id} has an open run; stop the run first`)
    }
    yield* Session.delete(kept.id)
    if (isJson) yield* json({ id: named.id, isDeleted: true })
    else yield* Console.log("the session is deleted")
    return 0
  })

/** Returns the agent of a failed or unfinished session, for the continuing run. */
export const broken = (named: Named) =>
  Effect.gen(function*() {
    const kept = yield* found(named)
    const isLeft = kept.session.status === "error" || Session.isUnfinished(kept)
    return isLeft
      ? kept.origin.agent ?? ""
      : yield* Problems.problem(`session ${named.id} has nothing to recover: its status is ${kept.session.status}`)
  })
