/**
 * The process of a server. It belongs to its connection from its start: a connection that is closed, in its handshake
 * too, has ended its process, and so has the end of this process.
 */
import type * as SdkStdio from "@modelcontextprotocol/client/stdio"
import type { ChildProcess } from "node:child_process"

/** The time that a process has to leave once its input has ended, in milliseconds. Then it is told to. */
const leavingMillis = 300

/** The time that it has once it was told to. Then it is killed. */
const dyingMillis = 2_000

/** The time in which what a process wrote last is still read, although others may hold its output open. */
const drainingMillis = 1_000

/** The processes that this one has started, and that have not ended. */
const living = new Set<ChildProcess>()

const killAll = (): void => {
  for (const child of living) child.kill("SIGKILL")
}

const keep = (child: ChildProcess): void => {
  if (living.size === 0) process.on("exit", killAll)
  living.add(child)
  child.once("exit", () => {
    living.delete(child)
    if (living.size === 0) process.off("exit", killAll)
  })
}

/** Closes the pipes of a process that has ended. The processes that it has started may hold them. */
const release = ({ stderr, stdout }: ChildProcess): void => {
  stdout?.destroy()
  stderr?.destroy()
}

const hasEnded = ({ exitCode, signalCode }: ChildProcess): boolean => exitCode !== null || signalCode !== null

/** Ends a process, whose input ends at the same time. */
const end = (child: ChildProcess): void => {
  if (hasEnded(child)) return release(child)
  const told = setTimeout(() => child.kill("SIGTERM"), leavingMillis)
  const killed = setTimeout(() => child.kill("SIGKILL"), leavingMillis + dyingMillis)
  child.once("exit", () => {
    clearTimeout(told)
    clearTimeout(killed)
    release(child)
  })
}

/** The process is private to the transport of the SDK. */
const childOf = (transport: unknown): ChildProcess | undefined =>
  (transport as { readonly _process?: ChildProcess })._process

/**
 * Makes a transport to a process. As a subclass it is asked which protocol it speaks in the process that serves, and not
 * in a second one.
 */
export const make = (
  { StdioClientTransport }: typeof SdkStdio,
  parameters: SdkStdio.StdioServerParameters
): SdkStdio.StdioClientTransport => {
  class Transport extends StdioClientTransport {
    private isClosed = false

    override start(): Promise<void> {
      if (this.isClosed) return Promise.reject(new Error("the connection was closed"))
      const started = super.start()
      const child = childOf(this)
      if (child?.pid === undefined) return started
      keep(child)
      child.once("exit", () => setTimeout(() => release(child), drainingMillis).unref())
      return started
    }

    override close(): Promise<void> {
      this.isClosed = true
      const child = childOf(this)
      if (child !== undefined) end(child)
      return super.close()
    }
  }
  return new Transport(parameters)
}
