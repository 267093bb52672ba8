/**
 * A server's standard input and output, line by line, before Effect reads and after it writes. Lines Effect would not
 * answer are answered here: lines that are too long, nested too deeply, invalid as JSON, or reusing the id of a running
 * request.
 */
import * as Bytes from "effect/Bytes"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Sink from "effect/Sink"
import * as Stdio from "effect/Stdio"
import * as Stream from "effect/Stream"
import * as Json from "../../internal/json.ts"

/** Maximum line length, in bytes. */
const longest = 16 * 1_048_576

/** Maximum nesting of objects and lists in a line. */
const deepest = 512

/** Maximum length of a member name and an id, in bytes, read from an unparsed line. */
const longestId = 256

type Id = string | number | null

const isId = (id: unknown): id is string | number => typeof id === "string" || typeof id === "number"

/** Reads a line's id and nesting without parsing it, whatever its length. */
class Scan {
  deepest = 0
  private depth = 0
  private isText = false
  private isEscaped = false
  private name = ""
  private value = ""
  private token: Array<number> = []

  feed(bytes: Uint8Array): void {
    for (const byte of bytes) this.take(byte)
  }

  get id(): Id {
    const id = Result.getOrUndefined(Json.parse(this.value))
    return isId(id) ? id : null
  }

  private take(byte: number): void {
    if (this.isText) {
      if (this.isEscaped) this.isEscaped = false
      else if (byte === 92) this.isEscaped = true
      else if (byte === 34) this.isText = false
    } else if (byte === 34) this.isText = true
    else if (byte === 123 || byte === 91) return this.enter()
    else if (byte === 125 || byte === 93) return this.leave()
    else if (this.depth === 1 && byte === 58) return void (this.name = this.read())
    else if (this.depth === 1 && byte === 44) return this.end()
    if (this.depth === 1 && this.token.length < longestId) this.token.push(byte)
  }

  private enter(): void {
    this.depth++
    if (this.depth > this.deepest) this.deepest = this.depth
  }

  private leave(): void {
    if (this.depth === 1) this.end()
    this.depth--
  }

  private end(): void {
    const value = this.read()
    if (this.name === `"id"`) this.value = value
    this.name = ""
  }

  private read(): string {
    const text = new TextDecoder().decode(Uint8Array.from(this.token)).trim()
    this.token = []
    return text
  }
}

/** An input line, without its bytes if too long. */
interface Line {
  readonly bytes: Uint8Array | undefined
  readonly scan: Scan
}

class Lines {
  private scan = new Scan()
  private parts: Array<Uint8Array> = []
  private size = 0

  take(chunk: Uint8Array): ReadonlyArray<Line> {
    const lines: Array<Line> = []
    let from = 0
    for (let to = chunk.indexOf(10); to >= 0; to = chunk.indexOf(10, from)) {
      this.add(chunk.subarray(from, to))
      if (this.size > 0) {
        lines.push({ bytes: this.size > longest ? undefined : Bytes.concat(this.parts), scan: this.scan })
      }
      this.scan = new Scan()
      this.parts = []
      this.size = 0
      from = to + 1
    }
    this.add(chunk.subarray(from))
    return lines
  }

  private add(part: Uint8Array): void {
    this.size += part.length
    this.scan.feed(part)
    if (this.size > longest) this.parts = []
    else this.parts.push(part)
  }
}

const problem = (id: Id, code: number, message: string): string =>
  `${JSON.stringify({ jsonrpc: "2.0", id, error: { code, message } })}\n`

/** Returns a server's guarded input and output. `listing` finishes its tool list. */
export const guarded = (stdio: Stdio.Stdio, listing: (text: string) => string): Stdio.Stdio => {
  const lines = new Lines()
  /** Methods of running requests, by id. */
  const underWay = new Map<string | number, string>()

  /** Returns the error answer to a rejected line, or `undefined` for an accepted line. */
  const refused = ({ bytes, scan }: Line): string | undefined => {
    if (bytes === undefined) return problem(scan.id, -32600, `a message must not exceed ${longest} bytes`)
    if (scan.deepest > deepest) return problem(scan.id, -32600, `a message must not nest deeper than ${deepest} levels`)
    const message = Result.getOrUndefined(Json.parse(new TextDecoder().decode(bytes)))
    if (message === undefined) return problem(scan.id, -32700, "the message is not valid JSON")
    if (typeof message !== "object" || message === null) return problem(null, -32600, "a message must be an object")
    const { id, method, params } = message as Json.JsonObject
    if (method === "notifications/cancelled" && Json.isObject(params) && isId(params["requestId"])) {
      underWay.delete(params["requestId"])
    }
    if (!isId(id) || typeof method !== "string") return undefined
    if (underWay.has(id)) {
      return problem(id, -32600, "the id belongs to a running request; give each request its own id")
    }
    underWay.set(id, method)
    return undefined
  }

  const answer = (text: string) => Stream.run(Stream.make(text), stdio.stdout())

  const read = Effect.fnUntraced(function*(chunk: Uint8Array) {
    const passed: Array<Uint8Array> = []
    for (const line of lines.take(chunk)) {
      const refusal = refused(line)
      if (refusal !== undefined) yield* answer(refusal)
      else if (line.bytes !== undefined) passed.push(Bytes.concat([line.bytes, Uint8Array.of(10)]))
    }
    return passed
  })

  /** Finishes a server message. A response frees its id. */
  const written = (sent: string | Uint8Array): string | Uint8Array => {
    const message = typeof sent === "string" ? Result.getOrUndefined(Json.parse(sent)) : undefined
    const { id, method } = Json.isObject(message) ? message : Json.none
    if (typeof sent !== "string" || !isId(id) || method !== undefined) return sent
    const asked = underWay.get(id)
    underWay.delete(id)
    return asked === "tools/list" ? `${listing(sent)}\n` : sent
  }

  return Stdio.make({
    ...stdio,
    stdin: Stream.flattenIterable(Stream.mapEffect(stdio.stdin, read)),
    stdout: (options) => Sink.mapInput(stdio.stdout(options), written)
  })
}
