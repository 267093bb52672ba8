/** The server and the page of the guide to a server of one's own, as they stand there. */
import type * as HttpRouter from "effect/http/HttpRouter"
import type * as Layer from "effect/Layer"
import type { Adapter } from "heddle"
import { readSource } from "../../support/source.ts"
import * as Guide from "./guide.ts"

const guide = "docs/own-server.md"

const example = () => Guide.exampleOf(guide, "export const server")

/** Number of lines of the server. */
export const lines = (): number => Guide.linesOf(example())

/** Loads the server. */
export const server = async (): Promise<Layer.Layer<never, never, HttpRouter.HttpRouter | Adapter.Adapter>> => {
  const { server } = await import(Guide.write("own-server.ts", example()))
  return server
}

/** The page. */
export const page = (): string => {
  const [, html] = /^```html\n(.*?)^```$/ms.exec(readSource(guide).text) ?? []
  if (html === undefined) throw new Error(`${guide} has no page`)
  return html
}
