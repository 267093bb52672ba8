/** Connections to a server whose bytes a test writes itself: bodies that stop, that drip, or that are never whole. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as net from "node:net"

/** A connection, and what came by it. */
export interface Connection {
  readonly write: (text: string) => Effect.Effect<void>
  /** Everything that came so far. */
  readonly text: () => string
  /** Waits for something that comes. */
  readonly until: (holds: (text: string) => boolean) => Effect.Effect<string>
  /** Waits for the status of the first response, without that of an interim one. */
  readonly status: Effect.Effect<number>
  /** Tells whether the server has closed its side. */
  readonly isClosed: () => boolean
  /** Waits until the server has closed its side. */
  readonly closed: Effect.Effect<void>
  /** Closes this side, and reads on. */
  readonly end: Effect.Effect<void>
  /** Breaks the connection off. */
  readonly leave: Effect.Effect<void>
}

const statusIn = (text: string): number | undefined => {
  const found = Array.from(text.matchAll(/HTTP\/1\.1 (\d{3})/g), ([, status]) => Number(status))
  return found.find((status) => status >= 200)
}

/** Opens a connection until the scope closes. */
export const connected = (url: string): Effect.Effect<Connection, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { port } = new URL(url)
    let [text, isClosed] = ["", false]
    const waiting = new Set<() => void>()
    const changed = () => {
      for (const check of waiting) check()
    }
    const closed = () => {
      isClosed = true
      changed()
    }
    /** Waits by what happens to the connection, so that a test clock does not matter. */
    const until = (isSo: () => boolean): Effect.Effect<string> =>
      Effect.callback((resume) => {
        const check = () => {
          if (isSo()) resume(Effect.succeed(text))
        }
        waiting.add(check)
        check()
        return Effect.sync(() => waiting.delete(check))
      })
    const socket = yield* Effect.acquireRelease(
      Effect.callback<net.Socket>((resume) => {
        const socket = net.connect(
          { port: Number(port), host: "127.0.0.1", allowHalfOpen: true, noDelay: true },
          () => {
            resume(Effect.succeed(socket))
          }
        )
        socket.on("data", (data) => {
          text += data.toString()
          changed()
        })
        for (const name of ["error", "end", "close"]) socket.on(name, closed)
      }),
      (socket) => Effect.sync(() => socket.destroy())
    )
    return {
      write: (given) => Effect.callback((resume) => void socket.write(given, () => resume(Effect.void))),
      text: () => text,
      until: (holds) => until(() => holds(text)),
      status: Effect.map(until(() => isClosed || statusIn(text) !== undefined), (text) => statusIn(text) ?? 0),
      isClosed: () => isClosed,
      closed: Effect.asVoid(until(() => isClosed)),
      end: Effect.sync(() => socket.end()),
      leave: Effect.sync(() => socket.destroy())
    }
  })

/** The head of a request. */
export const headOf = (
  method: string,
  path: string,
  headers: Readonly<Record<string, string>>,
  version = "1.1"
): string => {
  const lines = Object.entries({ host: "127.0.0.1", ...headers }).map(([name, value]) => `${name}: ${value}`)
  return [`${method} ${path} HTTP/${version}`, ...lines, "", ""].join("\r\n")
}
