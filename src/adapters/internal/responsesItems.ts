/**
 * Finds the output item a Responses event belongs to. Servers invent a new id for every event, give all items the same
 * index, or omit either. Items are matched by type, place and id. Every lookup takes constant time, however many items
 * exist.
 */
import type * as ToolCalls from "../../internal/hear/toolCalls.ts"
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

/** A text's meaning for its reader. */
export type Kind = "text" | "refusal" | "thought"

/** A text's place in its item. */
export type Place = "content" | "summary"

/** Place at which a whole text is repeated: a text event, a part event, or the item. */
export type Source = "text" | "part" | "item"

/** A text as listed by its item. */
export interface Listed {
  readonly place: Place
  readonly index: unknown
  readonly whole: string
}

class Piece {
  readonly place: Place
  text = ""
  /** Number of leading characters each source has repeated; infinite after the whole text. */
  private readonly repeated = new Map<Source, number>()

  constructor(place: Place) {
    this.place = place
  }

  isRepeated(source: Source): boolean {
    return this.repeated.get(source) === Infinity
  }

  /** Returns the rest not yet repeated by the source. */
  rest(source: Source): string {
    return this.text.slice(this.repeated.get(source) ?? 0)
  }

  /** Returns `true` if the unrepeated rest begins another text, or continues it. */
  isAlike(source: Source, whole: string): boolean {
    const rest = this.rest(source)
    return whole.startsWith(rest) || rest.startsWith(whole)
  }

  /** Ends the repetition. The source's text replaces the streamed rest. Returns the part never streamed. */
  end(source: Source, whole: string): string {
    const rest = this.rest(source)
    this.text = this.text.slice(0, this.text.length - rest.length) + whole
    this.repeated.set(source, Infinity)
    return whole.startsWith(rest) ? whole.slice(rest.length) : ""
  }

  /** Records how much of the rest the source has repeated. */
  goOn(source: Source, length: number): void {
    this.repeated.set(source, (this.repeated.get(source) ?? 0) + length)
  }

  /** Removes an unfinished repetition from the text. */
  cut(source: Source): void {
    if (!this.repeated.has(source) || this.isRepeated(source)) return
    this.text = this.text.slice(0, this.repeated.get(source))
    this.repeated.set(source, Infinity)
  }
}

/**
 * Collects an item's texts of one kind. While streaming, servers divide and number texts in one way, and in repetitions
 * in another. A repetition is therefore compared with the streamed characters: it may match one streamed text, several
 * in a row, or part of one.
 */
export class Texts {
  /** Pieces in the order they began, none empty. */
  private readonly all: Array<Piece> = []
  private readonly byPlace = new Map<string, number>()
  /** Number of texts each source has repeated. */
  private readonly next = new Map<Source, number>()

  get text(): string {
    return this.all.map(({ text }) => text).join("")
  }

  add(place: Place, index: unknown, fragment: string): void {
    if (fragment === "") return
    const known = this.all[this.byPlace.get(keyOf(place, index)) ?? -1]
    const piece = known ?? this.begin(place, index)
    piece.text += fragment
  }

  /** Takes a repeated whole text. Returns the part never streamed. */
  repeat(source: Source, { index, place, whole }: Listed, isOneOfAll = false): string {
    if (whole === "") return ""
    const next = this.following(source)
    const row = this.row(source, next, whole)
    if (row !== undefined) return this.repeatRow(source, next, row, whole)
    const position = this.find(source, place, index, whole, isOneOfAll)
    const piece = this.all[position]
    if (piece === undefined) return this.begin(place, index).end(source, whole)
    const ownRow = this.row(source, position, whole)
    return ownRow === undefined ? piece.end(source, whole) : this.repeatRow(source, position, ownRow, whole)
  }

  /** Takes all texts of this kind, as repeated by the item. Returns the part never streamed. */
  list(listed: ReadonlyArray<Listed>): string {
    const places = new Set(listed.map(({ place }) => place))
    if (listed.length === 0) return ""
    const all = this.cover(this.all, listed)
    if (all !== undefined) return all
    const rest = [...places].map((place) => {
      const here = listed.filter((one) => one.place === place)
      return this.cover(this.all.filter((piece) => piece.place === place), here) ??
        here.map((one) => this.repeat("item", one, here.length <= this.all.length)).join("")
    }).join("")
    for (const piece of this.all) if (places.has(piece.place)) piece.cut("item")
    return rest
  }

  /** Returns the listed texts' additions, if they begin with everything streamed, however divided. */
  private cover(pieces: ReadonlyArray<Piece>, listed: ReadonlyArray<Listed>): string | undefined {
    const last = pieces.at(-1)
    const said = pieces.map(({ text }) => text).join("")
    const repeated = listed.map(({ whole }) => whole).join("")
    if (last === undefined || !repeated.startsWith(said)) return undefined
    for (const piece of pieces) piece.end("item", piece.rest("item"))
    let start = 0
    for (const { index, place, whole } of listed) {
      const left = whole.slice(Math.max(0, said.length - start))
      if (start >= said.length && left !== "") this.begin(place, index).end("item", left)
      else last.text += left
      start += whole.length
    }
    return repeated.slice(said.length)
  }

  /**
   * Finds the repeated text, if any. The text at the place counts unless the next unrepeated text is more similar. With
   * `isOneOfAll`, at most as many texts are repeated as have begun: the next text then matches even if rewritten.
   */
  private find(source: Source, place: Place, index: unknown, whole: string, isOneOfAll: boolean): number {
    const ownPosition = this.byPlace.get(keyOf(place, index)) ?? -1
    const nextPosition = this.following(source)
    const own = this.all[ownPosition]
    const next = this.all[nextPosition]
    const isOpen = own !== undefined && !own.isRepeated(source)
    const isNext = next !== undefined &&
      (next.isAlike(source, whole) || (!isOpen && isOneOfAll && next.place === place))
    if (isOpen && (!isNext || own.isAlike(source, whole))) return ownPosition
    return isNext ? nextPosition : -1
  }

  /**
   * Returns where a row of texts at one place ends. The whole text must begin like the row, or continue it if no
   * further text has begun.
   */
  private row(source: Source, first: number, whole: string): number | undefined {
    const place = this.all[first]?.place
    let position = first
    let length = 0
    while (length < whole.length) {
      const piece = this.all[position]
      if (piece === undefined) return position > first ? position : undefined
      if (piece.place !== place || piece.isRepeated(source)) return undefined
      const rest = piece.rest(source)
      const left = whole.slice(length)
      if (!left.startsWith(rest) && !rest.startsWith(left)) return undefined
      length += rest.length
      position++
    }
    return position
  }

  private repeatRow(source: Source, first: number, end: number, whole: string): string {
    let left = whole
    for (const [index, piece] of this.all.slice(first, end).entries()) {
      const rest = piece.rest(source)
      if (rest.length > left.length) {
        piece.goOn(source, left.length)
        return ""
      }
      if (index === end - first - 1) return piece.end(source, left)
      piece.end(source, rest)
      left = left.slice(rest.length)
    }
    return ""
  }

  /** Returns the position of the first unrepeated text. */
  private following(source: Source): number {
    let position = this.next.get(source) ?? 0
    while (this.all[position]?.isRepeated(source) === true) position++
    this.next.set(source, position)
    return position
  }

  private begin(place: Place, index: unknown): Piece {
    const piece = new Piece(place)
    this.byPlace.set(keyOf(place, index), this.all.length)
    this.all.push(piece)
    return piece
  }
}

const keyOf = (place: Place, index: unknown): string => `${place}:${String(index)}`

export class Item {
  readonly position: number
  readonly type: string
  id: string | undefined
  /** Id from the first event inside the item, until its own id is known. */
  eventId: string | undefined
  /** Item as last sent; undefined while its header is missing. */
  wire: Json.JsonObject | undefined
  /** Call made from the item. */
  call: ToolCalls.Call | undefined
  /** `true` if a call's arguments came in separate events. */
  hasText = false
  /** `true` if a provider item type turned out to be a call for Heddle. */
  isOwn = false
  isDone = false
  private readonly byKind = new Map<Kind, Texts>()

  constructor(position: number, type: string) {
    this.position = position
    this.type = type
  }

  texts(kind: Kind): Texts {
    const texts = this.byKind.get(kind) ?? new Texts()
    this.byKind.set(kind, texts)
    return texts
  }
}

export const typeOf = (wire: Json.JsonObject): string => Wire.string(wire["type"]) ?? "message"

const placeOf = (type: string, index: unknown): string => `${type}:${String(index)}`

export class Items {
  readonly all: Array<Item> = []
  private readonly byPlace = new Map<string, Item>()
  private readonly byId = new Map<string, Item>()
  /** Latest item per type with unknown index. */
  private readonly unplaced = new Map<string, Item>()
  private readonly byType = new Map<string, Array<Item>>()

  /** Returns a type's items, in the order they began. */
  ofType(type: string): ReadonlyArray<Item> {
    return this.byType.get(type) ?? []
  }

  /** Returns a type's items in order; calls known only by arguments come after calls with headers. */
  known(type: string): ReadonlyArray<Item> {
    const all = this.ofType(type)
    if (type !== "function_call" || all.every(({ wire }) => wire !== undefined)) return all
    return [...all.filter(({ wire }) => wire !== undefined), ...all.filter(({ wire }) => wire === undefined)]
  }

  open(type: string, index: unknown): Item {
    const item = new Item(this.all.length, type)
    this.all.push(item)
    if (index === undefined) this.unplaced.set(type, item)
    else this.byPlace.set(placeOf(type, index), item)
    const alike = this.byType.get(type) ?? []
    alike.push(item)
    this.byType.set(type, alike)
    return item
  }

  /** Merges an item's fields. Its first id counts. */
  describe(item: Item, wire: Json.JsonObject): void {
    item.id ??= Wire.string(wire["id"])
    if (item.id !== undefined) this.byId.set(item.id, item)
    item.wire = { ...item.wire, ...wire, ...Wire.defined({ id: item.id }) }
  }

  /** Returns the item that begins: a new item, unless an event came before its header, or the header is repeated. */
  begun(wire: Json.JsonObject, index: unknown): Item {
    const type = typeOf(wire)
    const id = Wire.string(wire["id"])
    const placed = this.byPlace.get(placeOf(type, index))
    const isOpen = placed?.isDone === false && (placed.wire === undefined || placed.id === id)
    const isAgain = placed?.isDone === true && id !== undefined && placed.id === id &&
      placed.wire?.["call_id"] === wire["call_id"]
    if (isOpen || isAgain) return placed
    const early = this.early(type, id)
    return early === undefined ? this.open(type, index) : this.place(early, index)
  }

  /** Returns the completed item, or `undefined` if already completed. */
  ended(wire: Json.JsonObject, index: unknown): Item | undefined {
    const type = typeOf(wire)
    const id = Wire.string(wire["id"])
    const found = this.find(type, index, id) ?? this.early(type, id)
    if (found?.isDone === true && found.id === id && found.wire?.["call_id"] === wire["call_id"]) return undefined
    return found === undefined || found.isDone ? this.open(type, index) : this.place(found, index)
  }

  /** Returns the item an event belongs to. The event may come before the item's header. */
  of(type: string, event: Json.JsonObject): Item {
    const index = event["output_index"]
    const id = Wire.string(event["item_id"])
    const item = this.find(type, index, id) ?? this.open(type, index)
    if (id !== undefined && item.id === undefined && item.eventId === undefined) {
      item.eventId = id
      if (!this.byId.has(id)) this.byId.set(id, item)
    }
    return item
  }

  /** Finds an item known only by events: by id, or an item whose events named no index. */
  private early(type: string, id: string | undefined): Item | undefined {
    const named = id === undefined ? undefined : this.byId.get(id)
    const isEarly = (item: Item | undefined) => item?.type === type && item.wire === undefined && !item.isDone
    if (isEarly(named)) return named
    const unplaced = this.unplaced.get(type)
    return isEarly(unplaced) ? unplaced : undefined
  }

  /** Registers the item at the index, unless taken. */
  private place(item: Item, index: unknown): Item {
    const key = placeOf(item.type, index)
    if (index !== undefined && !this.byPlace.has(key)) this.byPlace.set(key, item)
    return item
  }

  /** Finds an item. An unknown id is ignored; a known id takes precedence over the index. */
  private find(type: string, index: unknown, id: string | undefined): Item | undefined {
    const placed = this.byPlace.get(placeOf(type, index))
    const named = id === undefined ? undefined : this.byId.get(id)
    if (placed !== undefined && (placed.id === id || named?.type !== type)) return placed
    return named?.type === type ? named : index === undefined ? this.byType.get(type)?.at(-1) : undefined
  }
}
