/** A server of tools behind the seam, without a process: what it lists and answers is the test's, and it counts what happens. */
import * as Effect from "effect/Effect"
import * as Backend from "../../../src/mcp/internal/backend.ts"

/** The definition of a tool of a server. */
export interface Definition {
  readonly name: string
  readonly title?: string
  readonly description?: string
  readonly inputSchema?: Record<string, unknown>
  readonly annotations?: Record<string, unknown>
  readonly execution?: Record<string, unknown>
  readonly outputSchema?: Record<string, unknown>
  readonly _meta?: Record<string, unknown>
  readonly icons?: ReadonlyArray<unknown>
}

const listed = (definition: Definition): Backend.Listed => {
  const { inputSchema = { type: "object" } } = definition
  return { ...definition, inputSchema, definition: { ...definition, inputSchema } }
}

export const result = (content: ReadonlyArray<Record<string, unknown>>, structured?: unknown): Backend.Response => ({
  _tag: "Result",
  content,
  structured,
  isError: false
})

export const said = (text: string): Backend.Response => result([{ type: "text", text }])

type Answering = (
  request: Backend.Request,
  progress: (value: unknown) => void
) => Effect.Effect<Backend.Response, Backend.Failure>

export class Fake {
  /** The servers of the test. */
  static readonly all = new Set<Fake>()
  tools: ReadonlyArray<Definition>
  answering: Answering = ({ tool }) => Effect.succeed(said(`${tool.name} was called`))
  /** What happens when its tools are listed. */
  listing: () => Effect.Effect<void, Backend.Failure> = () => Effect.void
  readonly requests: Array<Backend.Request> = []
  opened = 0
  /** The connections that were made of those that were opened. */
  made = 0
  closed = 0
  /** The number of times that it is not reached. */
  refusals = 0
  listener: Backend.Listener | undefined
  /** Holds a connection back. */
  gate: Effect.Effect<void> = Effect.void

  constructor(tools: ReadonlyArray<Definition>) {
    this.tools = tools
    Fake.all.add(this)
  }

  readonly connect: Backend.Connect = (listener) =>
    Effect.gen({ self: this }, function*() {
      this.opened++
      yield* Effect.interruptible(this.gate)
      if (this.refusals > 0) {
        this.refusals--
        return yield* new Backend.Failure({ reason: "lost", message: "not reached" })
      }
      this.listener = listener
      this.made++
      return {
        facts: { "network.transport": "pipe", "mcp.protocol.version": "2026-07-28" },
        list: Effect.suspend(() => Effect.as(this.listing(), { tools: this.tools.map(listed), leftOut: [] })),
        call: (request, progress) =>
          Effect.suspend(() => {
            this.requests.push(request)
            return this.answering(request, progress)
          }),
        close: Effect.sync(() => {
          this.closed++
        })
      }
    })

  /** Ends the connection. */
  readonly lose = Effect.suspend(() => {
    const failure = new Backend.Failure({ reason: "lost", message: "the connection was closed" })
    this.listener?.lost(failure)
    return Effect.fail(failure)
  })

  /** Lists other tools from now on, and says so. */
  change(tools: ReadonlyArray<Definition>): void {
    this.tools = tools
    this.listener?.changed()
  }
}
