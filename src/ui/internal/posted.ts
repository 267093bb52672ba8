/**
 * Reads bodies posted by browsers, in both protocols. A body is untrusted: it supplies only a new message, answers, and
 * the ids they answer. Errors describe fields in protocol terms, never with the body's own content.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import { checkNames, type NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Body from "../Body.ts"

const sessionIds = /^[A-Za-z0-9_-]{1,128}$/
const mediaTypes = /^[A-Za-z0-9][\w.+-]{0,62}\/[A-Za-z0-9][\w.+-]{0,62}$/
const dataUrl = /^data:([^,]{0,200}),/i
const base64 = /^[A-Za-z0-9+/]*={0,2}$/
const mostIds = 512
const deepest = 64

const mebibytes = 1_048_576

/** Aborts reading a body. */
class Refusal {
  readonly error: Body.BodyError
  constructor(error: Body.BodyError) {
    this.error = error
  }
}

const refuse = (reason: Body.BodyError["reason"], field: string, detail: string): never => {
  throw new Refusal(new Body.BodyError({ reason, field, detail }))
}

/** Runs a reading, turning a refusal into a failure. */
export const reading = <A>(read: () => A): Result.Result<A, Body.BodyError> => {
  try {
    return Result.succeed(read())
  } catch (error) {
    if (error instanceof Refusal) return Result.fail(error.error)
    throw error
  }
}

const encoder = new TextEncoder()

/** Prefix for command ids made by a server. */
export const ownIds = "heddle:"

const standard: Required<Body.Bounds> = {
  files: 64,
  fileBytes: 8 * mebibytes,
  textBytes: mebibytes,
  clientTools: 32,
  clientToolBytes: 16_384
}

const knownOptions = {
  allowUrl: Values.fn,
  bounds: Values.options(
    {
      files: Values.bound,
      fileBytes: Values.bound,
      textBytes: Values.bound,
      clientTools: Values.bound,
      clientToolBytes: Values.bound
    } satisfies NamesOf<Body.Bounds>
  )
} satisfies NamesOf<Body.ReadOptions>

/** Reads the fields of one body, and counts the accepted content. */
export class Reader {
  private readonly bounds: Required<Body.Bounds>
  private readonly allowUrl: (url: string) => boolean
  private texts = 0
  private files = 0

  constructor(name: string, options: Body.ReadOptions) {
    checkNames(name, options, knownOptions)
    const { allowUrl = () => false, bounds = {} } = options
    this.allowUrl = allowUrl
    this.bounds = Values.filled(standard, bounds)
  }

  refuse(field: string, detail: string): never {
    return refuse("invalid_body", field, detail)
  }

  unsupported(field: string, detail: string): never {
    return refuse("unsupported", field, detail)
  }

  object(value: unknown, field: string): Json.JsonObject {
    return Json.isObject(value) ? value : this.refuse(field, "must be an object")
  }

  list(value: unknown, field: string): ReadonlyArray<unknown> {
    return Array.isArray(value) ? value : this.refuse(field, "must be a list")
  }

  /** Returns an identifying text. */
  id(value: unknown, field: string): string {
    return typeof value === "string" && value !== "" && value.length <= mostIds
      ? value
      : this.refuse(field, `must be a string of 1 to ${mostIds} characters`)
  }

  /** Accepts a call or suspension id. A model chooses call ids, so they have no separate length limit. */
  callId(value: unknown, field: string): string {
    return value === "" ? this.refuse(field, "must not be empty") : this.text(value, field)
  }

  /** Returns a message id. The prefix of server command ids is reserved. */
  messageId(value: unknown, field: string): string {
    const id = this.id(value, field)
    if (id === "." || id === ".." || !id.isWellFormed()) {
      return this.refuse(field, "must be usable in an address: neither \".\" nor \"..\", and well-formed")
    }
    return id.startsWith(ownIds) ? this.refuse(field, `must not begin with ${ownIds}`) : id
  }

  sessionId(value: unknown, field: string): string {
    return typeof value === "string" && sessionIds.test(value)
      ? value
      : this.refuse(field, "must have 1 to 128 characters of A-Z a-z 0-9 _ -")
  }

  text(value: unknown, field: string): string {
    if (typeof value !== "string") return this.refuse(field, "must be a string")
    this.count(value, field)
    return value
  }

  private count(text: string, field: string): void {
    // A character takes at least one byte, so a text with more characters than the limit need not be encoded.
    this.texts += text.length > this.bounds.textBytes ? text.length : encoder.encode(text).length
    if (this.texts > this.bounds.textBytes) {
      refuse("too_large", field, `text, answers and edits must not exceed ${this.bounds.textBytes} bytes together`)
    }
  }

  /** Accepts any JSON, copied into new objects. */
  json(value: unknown, field: string): Schema.Json {
    if (value === undefined) return null
    if (Json.isDeeper(value, deepest)) return this.refuse(field, `must not nest deeper than ${deepest} levels`)
    const text = JSON.stringify(value)
    if (text === undefined) return this.refuse(field, "must be JSON")
    this.count(text, field)
    return Result.getOrElse(Json.parse(text), () => null) as Schema.Json
  }

  edits(value: unknown, field: string): Json.JsonObject {
    this.object(value, field)
    return this.object(this.json(value, field), field)
  }

  /** Returns the approval or denial in an answer, if any. */
  decision(
    id: string,
    given: unknown,
    field: string,
    edited = `${field}.arguments`
  ): Body.Approve | Body.Deny | undefined {
    if (!Json.isObject(given) || typeof given["approved"] !== "boolean") return undefined
    const { approved, arguments: edits, reason } = given
    if (approved) {
      const hasEdits = edits !== undefined && edits !== null
      return { _tag: "Approve", id, ...(hasEdits ? { edits: this.edits(edits, edited) } : {}) }
    }
    const hasReason = reason !== undefined && reason !== null && reason !== ""
    return { _tag: "Deny", id, ...(hasReason ? { reason: this.text(reason, `${field}.reason`) } : {}) }
  }

  private mediaType(value: unknown, field: string): string {
    return typeof value === "string" && mediaTypes.test(value)
      ? value.toLowerCase()
      : this.refuse(field, "must be a media type such as image/png")
  }

  private filename(value: unknown, field: string): { readonly filename?: string } {
    if (value === undefined || value === null) return {}
    return typeof value === "string" && value.length <= 255
      ? { filename: value }
      : this.refuse(field, "must be a string of at most 255 characters")
  }

  private part(mediaType: string, source: { readonly url: string } | { readonly data: string }, named: {
    readonly filename?: string
  }): Message.Part {
    return mediaType.startsWith("image/")
      ? { type: "image", mediaType, ...source }
      : { type: "file", mediaType, ...source, ...named }
  }

  private enter(field: string): void {
    if (++this.files > this.bounds.files) {
      refuse("too_large", field, `a message may have at most ${this.bounds.files} files`)
    }
  }

  /** Accepts a base64 file. */
  data(data: unknown, mediaType: unknown, field: string, filename?: unknown): Message.Part {
    this.enter(field)
    if (typeof data !== "string") return this.refuse(field, "must be base64")
    if (data.length / 4 * 3 > this.bounds.fileBytes + 3) {
      refuse("too_large", field, `a file must not exceed ${this.bounds.fileBytes} bytes`)
    }
    if (!base64.test(data)) return this.refuse(field, "must be base64")
    const bytes = Base64.decode(data)
    if (Result.isFailure(bytes)) return this.refuse(field, "must be base64")
    if (bytes.success.length > this.bounds.fileBytes) {
      refuse("too_large", field, `a file must not exceed ${this.bounds.fileBytes} bytes`)
    }
    return this.part(
      this.mediaType(mediaType, `${field} (media type)`),
      { data },
      this.filename(filename, `${field} (name)`)
    )
  }

  /** Accepts a file given as a `data:` URL, or another URL if allowed. */
  url(url: unknown, mediaType: unknown, field: string, filename?: unknown): Message.Part {
    if (typeof url !== "string") return this.refuse(field, "must be a data: URL")
    const [head, type = ""] = dataUrl.exec(url) ?? []
    if (head !== undefined) {
      if (!/;base64$/i.test(type)) return this.refuse(field, "must be a data: URL in base64")
      return this.data(url.slice(head.length), mediaType ?? type.slice(0, type.indexOf(";")), field, filename)
    }
    this.enter(field)
    if (!/^https?:\/\//i.test(url) || url.length > 8192 || !this.allowUrl(url)) {
      return this.refuse(field, "must be a data: URL: files are not fetched from addresses")
    }
    const type_ = this.mediaType(mediaType, `${field} (media type)`)
    return this.part(type_, { url }, this.filename(filename, `${field} (name)`))
  }

  /** Returns parts as message content: a plain text for a single text part. */
  content(parts: ReadonlyArray<Message.Part>, field: string): Message.Content {
    const [only] = parts
    if (only === undefined) return this.refuse(field, "must have a text or a file")
    return parts.length === 1 && only.type === "text" ? only.text : parts
  }

  clientTools(value: unknown, field: string): ReadonlyArray<Body.ClientTool> {
    if (value === undefined || value === null) return []
    const tools = this.list(value, field)
    if (tools.length > this.bounds.clientTools) {
      refuse("too_large", field, `a client may bring at most ${this.bounds.clientTools} tools`)
    }
    const names = new Set<string>()
    return tools.map((tool, index) => {
      const place = `${field}[${index}]`
      const { description, name, parameters } = this.object(tool, place)
      if (typeof name !== "string" || !/^[A-Za-z0-9_-]{1,64}$/.test(name)) {
        return this.refuse(`${place}.name`, "must have 1 to 64 characters of A-Z a-z 0-9 _ -")
      }
      if (names.has(name)) return this.refuse(`${place}.name`, "must differ from the other tools' names")
      names.add(name)
      if (typeof description !== "string") return this.refuse(`${place}.description`, "must be a string")
      const schema = parameters === undefined || parameters === null
        ? {}
        : this.object(parameters, `${place}.parameters`)
      if (Json.isDeeper(schema, deepest)) {
        return this.refuse(`${place}.parameters`, `must not nest deeper than ${deepest} levels`)
      }
      const text = JSON.stringify(schema)
      if (encoder.encode(text).length + encoder.encode(description).length > this.bounds.clientToolBytes) {
        refuse("too_large", place, `a client's tool must not exceed ${this.bounds.clientToolBytes} bytes`)
      }
      return { name, description, parameters: this.object(Result.getOrThrow(Json.parse(text)), place) }
    })
  }
}
