/** Real clients of MCP, of both eras of the protocol. */
import { Client, type ClientOptions, StreamableHTTPClientTransport } from "@modelcontextprotocol/client"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { send } from "../../server/support/hostile.ts"

/** An era of the protocol. */
export type Era = "modern" | "legacy"

export const eras: ReadonlyArray<Era> = ["modern", "legacy"]

/** The answer that a user gives. */
export type Given =
  | { readonly action: "accept"; readonly content: Record<string, string | number | boolean> }
  | { readonly action: "decline" | "cancel" }

/** A request of a server to ask the user. */
export interface Asked {
  readonly message: string
  readonly requestedSchema: { readonly properties: Record<string, unknown> }
}

export interface Settings {
  readonly era: Era
  readonly headers?: Record<string, string>
  /** Answers the questions of the server. Without it the client cannot ask. */
  readonly answer?: (asked: Asked) => Given | Promise<Given>
  readonly fetch?: typeof globalThis.fetch
}

/** Makes a client that is not connected. */
export const clientOf = ({ answer, era }: Settings): Client => {
  const options: ClientOptions = {
    versionNegotiation: { mode: era === "modern" ? { pin: "2026-07-28" } : "legacy" },
    capabilities: answer === undefined ? {} : { elicitation: { form: {} } }
  }
  const client = new Client({ name: "test", version: "1" }, options)
  if (answer !== undefined) {
    client.setRequestHandler(
      "elicitation/create",
      async ({ params }: { params: unknown }) => answer(params as Asked) as never
    )
  }
  return client
}

/** Connects a client over HTTP until the scope closes. */
export const connect = (url: string, settings: Settings): Effect.Effect<Client, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = clientOf(settings)
      const { fetch, headers = {} } = settings
      await client.connect(
        new StreamableHTTPClientTransport(new URL(`${url}/mcp`), {
          requestInit: { headers },
          ...(fetch === undefined ? {} : { fetch })
        })
      )
      return client
    }),
    (client) => Effect.promise(() => client.close())
  )

/** The text of a result. */
export const textOf = ({ content }: { readonly content: ReadonlyArray<unknown> }): string =>
  content.map((part) => (part as { readonly text?: string }).text ?? "").join("")

type Called = Awaited<ReturnType<Client["callTool"]>>

/** Calls a tool. */
export const call = (
  client: Client,
  name: string,
  args: Record<string, unknown> = {},
  options: Parameters<Client["callTool"]>[1] = {}
): Effect.Effect<Called, unknown> =>
  Effect.tryPromise({ try: () => client.callTool({ name, arguments: args }, options), catch: (error) => error })

/** The parts of a message that a client without the library chooses. */
export interface Raw {
  readonly method?: string
  readonly params?: Record<string, unknown>
  readonly headers?: Record<string, string>
  /** The message itself, where it is none of the protocol. */
  readonly body?: unknown
}

/** Sends a message of the modern era as it is, and reads the answer. */
export const sendRaw = (
  url: string,
  { body, headers = {}, method = "tools/call", params = {} }: Raw
): Effect.Effect<{ readonly status: number; readonly text: string; readonly message: any }> => {
  const name = typeof params["name"] === "string" ? { "mcp-name": params["name"] } : {}
  const meta = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": { name: "raw", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": { elicitation: { form: {} } }
  }
  return Effect.map(
    send(url, {
      path: "/mcp",
      headers: {
        accept: "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        ...name,
        ...headers
      },
      body: body ?? { jsonrpc: "2.0", id: 1, method, params: { _meta: meta, ...params } }
    }),
    ({ status, text }) => ({ status, text, message: messageOf(text) })
  )
}

const messageOf = (text: string): unknown => {
  const data = text.split("\n").findLast((line) => line.startsWith("data: "))?.slice(6) ?? text
  try {
    return JSON.parse(data)
  } catch {
    return undefined
  }
}
