/**
 * A server's process. It belongs to its connection from the start: closing the connection, even during the handshake,
 * ends the process, and so does the end of this process.
 */
import type * as SdkStdio from "@modelcontextprotocol/client/stdio"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import type { ChildProcess } from "node:child_process"
import { default as node } from "node:process"

/** Time for a process to exit after its input ended, in milliseconds. Then it receives a signal. */
const leavingMillis = 300

/** Time for a process to exit after the signal, in milliseconds. Then it is killed. */
const dyingMillis = 2_000

/** Time to read an exited process's last output, in milliseconds: its child processes may hold the output open. */
const drainingMillis = 1_000

/** Processes started by this process and still running. */
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

/** Closes the pipes of an exited process. Its child processes may still hold them. */
const release = ({ stderr, stdout }: ChildProcess): void => {
  stdout?.destroy()
  stderr?.destroy()
}

const hasEnded = ({ exitCode, signalCode }: ChildProcess): boolean => exitCode !== null || signalCode !== null

/** Runs work beside the connection's own. */
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

/** Returns the process, which is private to the SDK's transport. */
const childOf = (transport: unknown): ChildProcess | undefined =>
  (transport as { readonly _process?: ChildProcess })._process

/**
 * Makes a transport to a process. The SDK negotiates the protocol through a second process for its own transport class,
 * but through the serving process for a subclass.
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

    /**
     * Ends the process and waits for its exit. The SDK's transport would not wait after killing, nor for an earlier
     * close.
     */
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
