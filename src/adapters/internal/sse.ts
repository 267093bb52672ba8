/**
 * Parses server-sent events from network reads. The work is linear in the input, wherever reads are cut: inside a line,
 * a CRLF or a code point. Memory is bounded. Lines other than fields are kept, because some servers break off a stream
 * with a bare JSON document; with `Documents`, such documents become events on arrival.
 */

/** An event: its name, if any, and its joined data lines. */
export interface SseEvent {
  readonly name: string | undefined
  readonly data: string
}

const lineEnd = /[\r\n]/g

export class Parser {
  /** `true` once input exceeded the limit; parsing stops there. */
  isTooLong = false
  /** Lines outside events. */
  stray = ""
  private readonly maximum: number
  private readonly documents: Documents | undefined
  private readonly decoder = new Decoder()
  private line = ""
  private name: string | undefined
  private data: string | undefined
  private isAfterReturn = false

  /**
   * Creates a parser. `maximum` bounds, in UTF-16 code units, each held event, line or document, and all stray lines
   * together. With `documents`, every JSON object in stray lines becomes a nameless event.
   */
  constructor(maximum: number, documents?: Documents) {
    this.maximum = maximum
    this.documents = documents
  }

  /** `true` once bytes were not UTF-8; parsing stops there. */
  get isInvalid(): boolean {
    return this.decoder.isInvalid
  }

  /** Returns the events completed by these bytes. */
  feed(bytes: Uint8Array): ReadonlyArray<SseEvent> {
    return this.read(this.decoder.decode(bytes))
  }

  /** Returns the open event: the last event counts even without its blank line. */
  end(): ReadonlyArray<SseEvent> {
    const events: Array<SseEvent> = []
    if (this.line !== "") this.endLine("", events)
    this.dispatch(events)
    this.stray += this.documents?.held ?? ""
    return events
  }

  private read(text: string): ReadonlyArray<SseEvent> {
    const events: Array<SseEvent> = []
    let position = this.isAfterReturn && text.startsWith("\n") ? 1 : 0
    if (text !== "") this.isAfterReturn = false
    while (!this.isTooLong) {
      lineEnd.lastIndex = position
      const end = lineEnd.exec(text)?.index
      if (end === undefined) break
      this.endLine(text.slice(position, end), events)
      const isReturn = text[end] === "\r"
      position = end + (isReturn && text[end + 1] === "\n" ? 2 : 1)
      this.isAfterReturn = isReturn && end + 1 === text.length
    }
    this.line += text.slice(position)
    this.check()
    return events
  }

  private endLine(rest: string, events: Array<SseEvent>): void {
    const line = this.line === "" ? rest : this.line + rest
    this.line = ""
    if (line === "") this.dispatch(events)
    else this.field(line, events)
    this.check()
  }

  private check(): void {
    const held = Math.max(this.data?.length ?? 0, this.documents?.held.length ?? 0)
    const length = Math.max(this.line.length, held, this.stray.length)
    if (length > this.maximum) this.isTooLong = true
  }

  private dispatch(events: Array<SseEvent>): void {
    if (this.data !== undefined) events.push({ name: this.name, data: this.data })
    this.name = undefined
    this.data = undefined
  }

  private field(line: string, events: Array<SseEvent>): void {
    const colon = line.indexOf(":")
    if (colon === 0) return
    const name = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1)
    if (name === "data") this.data = this.data === undefined ? value : `${this.data}\n${value}`
    else if (name === "event") this.name = value
    else if (name !== "id" && name !== "retry") this.strayLine(line, events)
  }

  private strayLine(line: string, events: Array<SseEvent>): void {
    const found = this.documents?.feed(line)
    if (found === undefined) this.stray += `${line}\n`
    else if (found.length > 0) this.dispatch(events)
    for (const data of found ?? []) events.push({ name: undefined, data })
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Documents outside events: a stream written as one JSON array, an error breaking off a stream, a whole reply. An
// object is found with its last line; only an open object is held, and the work is linear in the lines.

/** Characters allowed before an object, and between two objects in a list. */
const between = /^[\s,[\]]*(\{|$)/

export class Documents {
  /** The open object. */
  held = ""
  private depth = 0
  private isInString = false

  /** Returns the objects completed by this line, or `undefined` if the line belongs to no object. */
  feed(line: string): ReadonlyArray<string> | undefined {
    if (this.depth === 0 && !between.test(line)) return undefined
    const found: Array<string> = []
    const mark = /["\\{}]/g
    let start = 0
    for (let at = mark.exec(line); at !== null; at = mark.exec(line)) {
      const depth = this.depth
      if (at[0] === "\\") mark.lastIndex = at.index + 2
      else this.step(at[0])
      if (depth === 0 && this.depth === 1) start = at.index
      if (depth !== 1 || this.depth !== 0) continue
      found.push(this.held + line.slice(start, at.index + 1))
      this.held = ""
    }
    if (this.depth > 0) this.held += `${line.slice(start)}\n`
    return found
  }

  private step(mark: string): void {
    if (mark === "\"") this.isInString = this.depth > 0 && !this.isInString
    else if (!this.isInString) this.depth = Math.max(0, this.depth + (mark === "{" ? 1 : -1))
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// UTF-8 decoding of bytes cut anywhere. Invalid bytes are never guessed: decoding stops before the first invalid byte.

const none = new Uint8Array(0)

/** Returns how many bytes a code point has, by its first byte. */
const lengthOf = (lead: number): number => lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4

/** Returns the trailing bytes of an incomplete code point. */
const begun = (bytes: Uint8Array): Uint8Array => {
  for (let index = bytes.length - 1; index >= Math.max(0, bytes.length - 3); index--) {
    const byte = bytes[index] ?? 0
    if ((byte & 0xc0) !== 0x80) return lengthOf(byte) > bytes.length - index ? bytes.subarray(index) : none
  }
  return none
}

const joined = (left: Uint8Array, right: Uint8Array): Uint8Array => {
  if (left.length === 0) return right
  const both = new Uint8Array(left.length + right.length)
  both.set(left)
  both.set(right, left.length)
  return both
}

export class Decoder {
  /** `true` once bytes were not UTF-8. */
  isInvalid = false
  private readonly decoder = new TextDecoder("utf-8", { fatal: true })
  /** Bytes of an incomplete code point, also held by the decoder. */
  private held: Uint8Array = none
  private hasText = false

  decode(bytes: Uint8Array): string {
    if (this.isInvalid) return ""
    const all = joined(this.held, bytes)
    try {
      const text = this.decoder.decode(bytes, { stream: true })
      this.held = begun(all).slice()
      this.hasText ||= text !== ""
      return text
    } catch {
      this.isInvalid = true
      return this.validStart(all)
    }
  }

  /**
   * Decodes byte by byte up to the first invalid byte. A byte order mark counts as text except at the very beginning.
   */
  private validStart(bytes: Uint8Array): string {
    const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: this.hasText })
    let text = ""
    try {
      for (const byte of bytes) text += decoder.decode(Uint8Array.of(byte), { stream: true })
    } catch {
      return text
    }
    return text
  }
}
