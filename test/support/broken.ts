/**
 * Executors and runs that are broken on purpose, each in one way that a real one could be. They show what the laws find.
 */
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as FiberSet from "effect/FiberSet"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Executor, Tool } from "heddle"

type Execution = Effect.Effect<Tool.Outcome, never, any>

/** An executor that does something else with each execution. */
export const changed = (change: (execution: Execution, tool: Tool.Any) => Execution): Executor.Service => ({
  execute:
    ((tool: Tool.Any, args: unknown, context: Tool.CallContext) =>
      change(Executor.direct.execute(tool, args, context), tool)) as Executor.Service["execute"]
})

/** It changes the arguments and the call that it is given, once it has run the call. */
export const meddling: Executor.Service = {
  execute:
    ((tool: Tool.Any, args: object, context: Tool.CallContext) =>
      Effect.tap(Executor.direct.execute(tool, args, context), () =>
        Effect.sync(() => {
          Object.assign(args, { place: 10n, self: args })
          Object.assign(context.toolCall, { id: "other", name: "other" })
          Object.assign(context.toolCall.arguments, { place: 11n, self: context.toolCall })
        }))) as Executor.Service["execute"]
}

/** A tool that hands its handler the arguments as they stand in the thread, and not a copy of them. */
export const sharing = <T extends Tool.Any>(tool: T): T => ({
  ...tool,
  parameters: { ...tool.parameters, decode: (input: unknown) => Effect.succeed(input) }
})

/** It runs the work in a detached fiber: interrupting the wait does not interrupt the work. */
export const orphaning: Layer.Layer<never> = Executor.layer(
  changed((execution) => Effect.flatMap(Effect.forkDetach(execution, { startImmediately: true }), Fiber.join))
)

/** It keeps one place per tool for the outcome that is waited for: the second call of a tool takes the first one's. */
export const losing: Layer.Layer<never> = Layer.effect(
  Executor.Executor,
  Effect.sync(() => {
    const places = new Map<string, Deferred.Deferred<Tool.Outcome>>()
    return changed((execution, { name }) =>
      Effect.gen(function*() {
        const place = yield* Deferred.make<Tool.Outcome>()
        places.set(name, place)
        const delivered = Effect.flatMap(execution, (outcome) => Deferred.succeed(places.get(name) ?? place, outcome))
        yield* Effect.forkChild(delivered)
        return yield* Deferred.await(place)
      })
    )
  })
)

/** It loses patience and starts a slow handler once more. */
export const doubling: Layer.Layer<never> = Executor.layer(
  changed((execution) => Effect.raceFirst(execution, Effect.delay(execution, "100 millis")))
)

/** It says of some tools that their work is done when it has begun it. */
export const hasty = (isHasty: (tool: Tool.Any) => boolean): Layer.Layer<never> =>
  Layer.effect(
    Executor.Executor,
    Effect.gen(function*() {
      const begun = yield* FiberSet.make()
      return changed((execution, tool) =>
        isHasty(tool)
          ? Effect.as(FiberSet.run(begun, execution, { startImmediately: true }), Tool.ok("begun"))
          : execution
      )
    })
  )

/** It lets others in while exclusive work goes on. */
export const unbarred: Layer.Layer<never> = hasty(({ concurrency }) => concurrency === "exclusive")

/** What a run knows of the handler that it is started in. */
const around = Context.Reference<unknown>("heddle/internal/Handler", { defaultValue: () => undefined })

/** It cuts the runs that handlers start off from the run that the handlers are of. */
export const severed: Executor.Service = changed((execution) => Effect.provideService(execution, around, undefined))

/** It reads the model in a scope of its own: its connections are closed when everything else of the run is over. */
export const hoarding = <A, E>(run: Effect.Effect<A, E, Adapter.Adapter>): Effect.Effect<A, E, Adapter.Adapter> =>
  Effect.scopedWith((scope) =>
    Effect.updateService(run, Adapter.Adapter, ({ stream }) => ({
      stream: (request) =>
        Stream.unwrap(
          Effect.map(Scope.provide(Stream.toQueue(stream(request), { capacity: 1 }), scope), Stream.fromQueue)
        )
    }))
  )

/** It waits for whatever it has left behind. */
export const waiting = <A, E, R>(
  run: Effect.Effect<A, E, R>,
  { awaited }: { readonly awaited: Effect.Effect<void> }
): Effect.Effect<A, E, R> => Effect.ensuring(run, awaited)

/** It says nothing of what it has left behind. */
export const silent = <A, E, R>(run: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.provideService(run, Logger.CurrentLoggers, new Set())

/** It numbers the results in the order in which they come. */
export const numbering: Layer.Layer<never> = Layer.effect(
  Executor.Executor,
  Effect.sync(() => {
    let last = 0
    return changed(Effect.map(() => Tool.ok(++last)))
  })
)
