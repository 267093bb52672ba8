/**
 * Server-sent events out of network reads. It is linear in what arrives, wherever the reads are cut: inside a line, a
 * CRLF or a code point. What it holds is bounded. Lines that are no field are kept, because servers are known to break
 * a stream off with a bare JSON document; whoever asks for it gets such documents as events, as they come.
 */
import type * as Documents from "./documents.ts"
import * as Utf8 from "./utf8.ts"

/** One event: its name, if it has one, and its data lines joined. */
export interface SseEvent {
  readonly name: string | undefined
  readonly data: string
}

const lineEnd = /[\r\n]/g

export class Parser {
  /** Whether more was held than is allowed; nothing is read from then on. */
  isTooLong = false
  /** The lines that were no field of an event. */
  stray = ""
  private readonly maximum: number
  private readonly documents: Documents.Documents | undefined
  private readonly decoder = new Utf8.Decoder()
  private line = ""
  private name: string | undefined
  private data: string | undefined
  private isAfterReturn = false

  /**
   * `maximum` bounds, in UTF-16 code units, what is held of one event, line or document, and the stray lines together.
   * With `documents`, every JSON object out of stray lines is an event without a name.
   */
  constructor(maximum: number, documents?: Documents.Documents) {
    this.maximum = maximum
    this.documents = documents
  }

  /** Whether there were bytes that are no UTF-8; nothing is read from there on. */
  get isInvalid(): boolean {
    return this.decoder.isInvalid
  }

  /** The events that are complete with these bytes. */
  feed(bytes: Uint8Array): ReadonlyArray<SseEvent> {
    return this.read(this.decoder.decode(bytes))
  }

  /** The event that was still open: the last one counts although the blank line after it is missing. */
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
