/**
 * Drives agent sessions in this process, and provides the server parts the routes need. All protocols reach sessions
 * through these parts.
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as PubSub from "effect/PubSub"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import * as Peers from "../../durable/internal/peers.ts"
import * as Worker from "../../durable/Worker.ts"
import type * as Event from "../../Event.ts"
import * as Requests from "../../internal/ask/request.ts"
import * as ToolOptions from "../../internal/declare/toolOptions.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Journal from "../../Journal.ts"
import * as Policy from "../../Policy.ts"
import * as Session from "../../Session.ts"
import type * as Tool from "../../Tool.ts"
import type * as Majors from "../../ui/internal/majors.ts"
import type * as Agents from "../Agent.ts"
import * as Access from "./access.ts"
import * as Offered from "./agents.ts"
import * as Bounded from "./bounds.ts"
import * as Facts from "./facts.ts"
import * as JournalEvents from "./journalEvents.ts"
import * as Logs from "./log.ts"
import * as Polls from "./polls.ts"
import * as Refusals from "./refusal.ts"
import * as Relays from "./relay.ts"
import type * as Routes from "./routes.ts"

/** Maximum number of sessions a process drives at once. */
const mostDriven = 1_000

/** Number of failures after which a run unable to start is ended: a person is waiting. */
const maxFailures = 2

/** Maximum time for an agent to determine its tools. */
const toolsWithin = "10 seconds"

/** Server options about sessions. */
export interface Settings<RAuthorize> {
  /**
   * Decides about every request except `/health`, `/ready`, preflights and Studio's static files. Required: see
   * `Server.allowLoopback`.
   */
  readonly authorize: Access.Authorize<RAuthorize>
  /**
   * `"detached"` lets a run outlive its request; `"attached"` stops it when the request ends. `"detached"` by default.
   */
  readonly mode?: "detached" | "attached"
  /**
   * Treatment of a message that arrives during a run, and whose body names no `mode`. `"refuse"` answers with 409,
   * `"follow"` keeps the message for the following run, and `"steer"` gives the message to the current run between two
   * steps. `"refuse"` by default.
   */
  readonly whileRunning?: "refuse" | "follow" | "steer"
  /** Limits on bodies, sessions, runs, streams and logs. */
  readonly bounds?: Bounded.Bounds
  /**
   * Maximum time for running calls to end when the server is released. A number is milliseconds. 20 seconds by default.
   */
  readonly drain?: Duration.Input
  /** Extent to which calls are published, or a function from the tool name to that extent. `"all"` by default. */
  readonly publish?: Event.Publish | ((tool: string) => Event.Publish)
  /** `true` to publish the model's reasoning. `false` by default. */
  readonly publishReasoning?: boolean
  /** `true` to publish the cost reported by providers, with the usage of steps and runs. `false` by default. */
  readonly publishCost?: boolean
  /** Tells whether a message may reference a file by this address. Only `data:` URLs by default. */
  readonly allowUrl?: (url: string) => boolean
  /**
   * Major version of the package `ai` on the pages. Their streams and messages use its format: `UiStream.Protocol`
   * describes the gaps of older versions. 7 by default. Anything but 5, 6 and 7 is a defect.
   */
  readonly protocol?: Majors.Protocol
  /** Milliseconds for which a delta waits for following deltas to join. 50 by default. */
  readonly joinMillis?: number
  /** `true` to serve raw events to principals allowed to `inspect`. `false` by default. */
  readonly raw?: boolean
  /**
   * Duration of a session claim unless renewed: after it, other processes take over a dead process's sessions. A number
   * is milliseconds. 30 seconds by default.
   */
  readonly term?: Duration.Input
  /**
   * Interval between searches for other processes' unfinished work, and for commands to sessions driven here. A number
   * is milliseconds. 200 by default.
   */
  readonly poll?: Duration.Input
}

/** Sessions of a process. */
export interface Hosting<R> {
  readonly site: Routes.Site
  /** Runs the sessions. */
  readonly worker: Layer.Layer<Worker.Worker, never, Session.Store | Adapter.Adapter | R>
  /** Announces the server's release: no request waits any longer for a run that ends in another process. */
  readonly close: Effect.Effect<unknown>
}

/** Prepares agent sessions. */
export const make = <R, RAuthorize>(
  options: Settings<RAuthorize>,
  agents: Offered.Named<R>,
  access: Access.Rules
): Effect.Effect<Hosting<R>, never, Scope.Scope | Session.Store | R | RAuthorize> =>
  Effect.gen(function*() {
    const bounds = Values.filled(Bounded.standard, options.bounds ?? {})
    const { drain = "20 seconds", joinMillis = 50, poll = "200 millis", term = "30 seconds" } = options
    const protocol = options.protocol ?? 7
    const publish: Event.PublicOptions = {
      publish: options.publish ?? "all",
      publishReasoning: options.publishReasoning ?? false,
      publishCost: options.publishCost ?? false
    }
    const scope = yield* Effect.scope
    const adapter = Option.getOrUndefined(yield* Effect.serviceOption(Adapter.Adapter))
    const defaults = yield* Policy.Defaults
    const hub = new Logs.Hub(bounds, joinMillis, scope, publish, yield* Clock.Clock)
    const raw = yield* PubSub.sliding<readonly [string, Event.Event]>(1_024)
    const context = yield* Effect.context<R | RAuthorize>()
    const processName = yield* Journal.CurrentProcess

    const store = yield* Session.Store
    /**
     * Passes an event on to readers. If sub-agent progress is missing before the event, all that progress is sent
     * first.
     */
    const push = (key: string, event: Event.Event): Effect.Effect<void> => {
      const gap = hub.gapBefore(key, event)
      if (gap === undefined) return hub.push(key, event)
      return JournalEvents.agentOf(key, gap.runId, gap.id, publish).pipe(
        Effect.provideService(Session.Store, store),
        Effect.catch(() => Effect.succeed([])),
        Effect.flatMap((events) => Effect.andThen(Effect.sync(() => hub.retell(key, events)), hub.push(key, event)))
      )
    }

    /** Returns the options without starting a run, and releases their resources. */
    const optionsOf = (name: string, session: Pick<Agents.AgentSession, "clientTools" | "principal" | "sessionId">) => {
      const options = Effect.suspend(() =>
        agents.get(name)?.run({ ...session, kept: undefined, metadata: {} }) ?? Effect.succeed<Agents.Options<R>>({})
      )
      return Access.prompt(Effect.provideContext(Effect.scoped(options), context))
    }

    /** Returns a tool decoding arguments with the agents' services. */
    const reading = (tool: Tool.Any): Tool.Any => ({
      ...tool,
      parameters: {
        get jsonSchema() {
          return tool.parameters.jsonSchema
        },
        decode: (input) => Effect.provideContext(tool.parameters.decode(input), context)
      }
    })

    const run = (kept: Session.Kept) =>
      Effect.gen(function*() {
        const { options: given, takes } = yield* Offered.nextOf(agents, kept)
        const runId = kept.interrupted?.requestId ?? globalThis.crypto.randomUUID()
        const past = kept.interrupted === undefined
          ? [{ _tag: "RunStarted" as const, runId, at: yield* Clock.currentTimeMillis }]
          : yield* Effect.orDie(JournalEvents.eventsOf(kept.id, runId, publish, true))
        hub.begin(kept.id, { runId, version: kept.version, takes, past })
        // The scope belongs to the drive, which has released its claim by then: readers get the end, or look for the
        // next owner.
        yield* Effect.addFinalizer(() => Effect.sync(() => hub.end(kept.id)))
        return {
          deadline: { after: bounds.run },
          ...given,
          requestId: runId,
          replays: false
        }
      })

    const worker = Worker.layer({
      run: run as (kept: Session.Kept) => Effect.Effect<Agents.Options<R>, never, R>,
      concurrency: mostDriven,
      maxFailures,
      drain,
      poll,
      term,
      onStop: (key, stop) => hub.stop(key, stop),
      onEvent: (key, event) =>
        options.raw === true
          ? Effect.andThen(push(key, event), PubSub.publish(raw, [key, event]))
          : push(key, event)
    }).pipe(Layer.provide(Layer.succeed(Requests.SessionListener, (key, event) => hub.tell(key, event))))

    const closing = Deferred.makeUnsafe<void>()
    const peers = yield* Peers.Peers
    const site: Routes.Site = {
      closing: Deferred.await(closing),
      hub,
      polls: new Polls.Polls(),
      publish,
      protocol,
      peers,
      processName,
      bounds,
      counters: new Bounded.Counters(bounds),
      access,
      authorize: (request, question) =>
        Effect.provideContext(options.authorize(request, question), context) as ReturnType<Access.Authorize>,
      agents,
      isAttached: options.mode === "attached",
      isQueued: options.whileRunning === "follow",
      into: options.whileRunning === "steer" ? { mode: "steer" } : undefined,
      isRaw: options.raw === true,
      allowUrl: options.allowUrl,
      checkTools: ({ agent: name, id, principal }, clientTools) =>
        Effect.flatMap(
          Effect.timeoutOption(optionsOf(name, { principal, sessionId: id, clientTools }), toolsWithin),
          (options) => {
            if (Option.isNone(options)) return Bounded.busy
            const own = new Set(options.value.tools?.map((tool) => tool.name))
            return clientTools.some(({ name }) => own.has(name))
              ? Refusals.badRequest(
                "tool_name_taken",
                "clientTools: A tool has the same name as one of the agent's tools. Give another name."
              )
              : Effect.void
          }
        ),
      changing: ({ agent: name, id, principal }, calls) =>
        calls.length === 0 ?
          Effect.succeed(calls) :
          optionsOf(name, { principal, sessionId: id, clientTools: [] }).pipe(
            Effect.timeout(toolsWithin),
            Effect.map(({ tools = [] }) => {
              const toolbox = ToolOptions.toolbox(defaults.tools ?? [], tools)
              return calls.filter((call) => {
                const tool = toolbox.get(call.name)
                return tool === undefined || !ToolOptions.isReadOnly(tool, call.arguments ?? {})
              })
            }),
            // A call counts as changing something if the tools cannot be read.
            Effect.catchCause((cause) => Facts.unread(name, cause, calls))
          ),
      toolsOf: (kept) =>
        Access.prompt(Effect.provideContext(Effect.scoped(Offered.nextOf(agents, kept)), context)).pipe(
          Effect.timeout(toolsWithin),
          Effect.map(({ options: { tools = [] } }) =>
            Array.from(ToolOptions.toolbox(defaults.tools ?? [], tools).values(), reading)
          ),
          // The run decodes the arguments if tools are unknown beforehand.
          Effect.catchCause((cause) => Facts.unread(kept.origin.agent, cause, []))
        ),
      factsOf: yield* Facts.make({
        optionsOf: (name, principal) => optionsOf(name, { principal, sessionId: "", clientTools: [] }),
        adapter,
        defaults,
        publish: options.publish
      }),
      raw: (key) =>
        Stream.fromPubSub(raw).pipe(
          Stream.filter(([other]) => other === key),
          Stream.map(([, event]) => event)
        )
    }
    const driving = Deferred.makeUnsafe<Worker.Worker["Service"]>()
    // Readers elsewhere read on while the worker leaves.
    const served = peers === undefined
      ? worker
      : Layer.effectDiscard(Effect.flatMap(Worker.Worker, (worker) => Deferred.succeed(driving, worker))).pipe(
        Layer.provideMerge(worker),
        Layer.provide(Layer.effectDiscard(Relays.serve(site, peers, Deferred.await(driving))))
      )
    return {
      site,
      worker: served as Layer.Layer<Worker.Worker, never, Session.Store | Adapter.Adapter | R>,
      close: Deferred.succeed(closing, undefined)
    }
  }) as unknown as Effect.Effect<Hosting<R>, never, Scope.Scope | Session.Store | R | RAuthorize>
