/**
 * The process of a server. It belongs to its connection from its start: a connection that is closed, in its handshake
 * too, has ended its process, and so has the end of this process.
 */
import type * as SdkStdio from "@modelcontextprotocol/client/stdio"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import type { ChildProcess } from "node:child_process"
import { default as node } from "node:process"

/** The time that a process has to leave once its input has ended, in milliseconds. Then it gets a signal. */
const leavingMillis = 300

/** The time that it has after the signal. Then it is killed. */
const dyingMillis = 2_000

/** The time in which what a process wrote last is still read, although others may hold its output open. */
const drainingMillis = 1_000

/** The processes that this one has started, and that have not ended. */
const living = new Set<ChildProcess>()

const killAll = (): void => {
  for (const child of living) child.kill("SIGKILL")
}

const keep = (child: ChildProcess): void => {
  if (living.size === 0) node.on("exit", killAll)
  living.add(child)
  child.once("exit", () => {
    living.delete(child)
    if (living.size === 0) node.off("exit", killAll)
  })
}

/** Closes the pipes of a process that has ended. The processes that it has started may hold them. */
const release = ({ stderr, stdout }: ChildProcess): void => {
  stdout?.destroy()
  stderr?.destroy()
}

const hasEnded = ({ exitCode, signalCode }: ChildProcess): boolean => exitCode !== null || signalCode !== null

/** Runs work beside that of the connection. */
type Run = (work: Effect.Effect<unknown>) => Fiber.Fiber<unknown>

/** Ends a process, whose input ends at the same time. */
const end = (child: ChildProcess, run: Run): void => {
  const signal = (name: "SIGTERM" | "SIGKILL") => Effect.sync(() => child.kill(name))
  const ending = run(
    Effect.andThen(Effect.delay(signal("SIGTERM"), leavingMillis), Effect.delay(signal("SIGKILL"), dyingMillis))
  )
  child.once("exit", () => {
    ending.interruptUnsafe()
    release(child)
  })
}

/** The process is private to the transport of the SDK. */
const childOf = (transport: unknown): ChildProcess | undefined =>
  (transport as { readonly _process?: ChildProcess })._process

/**
 * Makes a transport to a process. As a subclass it is asked which protocol it speaks in the process that serves, and
 * not in a second one.
 */
export const make = (
  { StdioClientTransport }: typeof SdkStdio,
  parameters: SdkStdio.StdioServerParameters,
  run: Run
): SdkStdio.StdioClientTransport => {
  class Transport extends StdioClientTransport {
    private closing: Promise<void> | undefined
    private draining: Fiber.Fiber<unknown> | undefined

    override start(): Promise<void> {
      if (this.closing !== undefined) return Promise.reject(new Error("the connection was closed"))
      const started = super.start()
      const child = childOf(this)
      if (child?.pid === undefined) return started
      keep(child)
      child.once("exit", () => {
        if (this.closing !== undefined) return
        this.draining = run(Effect.delay(Effect.sync(() => release(child)), drainingMillis))
      })
      return started
    }

    override close(): Promise<void> {
      return this.closing ??= this.end()
    }

    /** The transport of the SDK waits neither for what it kills nor, closed once more, for its first end. */
    private end(): Promise<void> {
      this.draining?.interruptUnsafe()
      const child = childOf(this)
      const closed = super.close()
      if (child?.pid === undefined) return closed
      if (hasEnded(child)) {
        release(child)
        return closed
      }
      const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()))
      end(child, run)
      return closed.then(() => ended)
    }
  }
  return new Transport(parameters)
}
