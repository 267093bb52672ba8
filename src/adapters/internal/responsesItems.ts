/**
 * Finds the output item of a Responses reply that an event belongs to. Servers make up a new id for every event, give
 * all items the same index, or leave either out; what they send is put together by type, place and id. Every lookup
 * takes the same time, however many items there are.
 */
import type * as ToolCalls from "../../internal/hear/toolCalls.ts"
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

/** The kind of a text to its reader. */
export type Kind = "text" | "refusal" | "thought"

/** The place of a text in its item. */
export type Place = "content" | "summary"

/** The place at which the whole of a text is repeated: in an event of the text, in one of its part, or in the item. */
export type Source = "text" | "part" | "item"

/** A text as the item lists it. */
export interface Listed {
  readonly place: Place
  readonly index: unknown
  readonly whole: string
}

class Piece {
  readonly place: Place
  text = ""
  /** The number of its first characters that each source has repeated, infinite when all of it was. */
  private readonly repeated = new Map<Source, number>()

  constructor(place: Place) {
    this.place = place
  }

  isRepeated(source: Source): boolean {
    return this.repeated.get(source) === Infinity
  }

  /** Returns the rest that the source has not repeated. */
  rest(source: Source): string {
    return this.text.slice(this.repeated.get(source) ?? 0)
  }

  /** Returns `true` if the text that was not repeated is the beginning of another text, or continues it. */
  isAlike(source: Source, whole: string): boolean {
    const rest = this.rest(source)
    return whole.startsWith(rest) || rest.startsWith(whole)
  }

  /** The source repeats what is left. It outweighs what was streamed; what was not streamed is returned. */
  end(source: Source, whole: string): string {
    const rest = this.rest(source)
    this.text = this.text.slice(0, this.text.length - rest.length) + whole
    this.repeated.set(source, Infinity)
    return whole.startsWith(rest) ? whole.slice(rest.length) : ""
  }

  /** The source repeats a part of what is left. */
  goOn(source: Source, length: number): void {
    this.repeated.set(source, (this.repeated.get(source) ?? 0) + length)
  }

  /** Removes from the text what the source began to repeat and never finished. */
  cut(source: Source): void {
    if (!this.repeated.has(source) || this.isRepeated(source)) return
    this.text = this.text.slice(0, this.repeated.get(source))
    this.repeated.set(source, Infinity)
  }
}

/**
 * The texts of one kind in an item. Servers divide and number the texts of an item in one way while they stream and in
 * another when they repeat them, so that a repetition is compared with the characters that were streamed: it may be one
 * of the streamed texts, several of them in a row, or a part of one.
 */
export class Texts {
  /** The pieces in the order in which they began. None is empty. */
  private readonly all: Array<Piece> = []
  private readonly byPlace = new Map<string, number>()
  /** The number of texts that each source has repeated. */
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

  /** The whole of a text is repeated. Returns what was not streamed of it. */
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

  /** All texts of the kind are repeated. Returns what was not streamed of them. */
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

  /** Returns what the listed texts add, if they begin with all that was streamed, however that was divided. */
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
   * Finds the text that is meant, if any. The one at the place counts only as long as the next one that is still to be
   * repeated is not more alike. `isOneOfAll` says that as many texts are repeated as have begun at most: then the next
   * one at hand is meant, even if it was rewritten.
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
   * The end of the row of texts, at one place, that a whole is the beginning of, or continues if no more have begun.
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

  /** The first text that is still to be repeated. */
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
  /** The id that the first event inside it gave it, as long as its own is not known. */
  eventId: string | undefined
  /** The item as the wire last sent it; nothing for one whose header is missing. */
  wire: Json.JsonObject | undefined
  /** The call of this side that it stands for. */
  call: ToolCalls.Call | undefined
  /** `true` if the arguments of a call came in events beside it. */
  hasText = false
  /** `true` if it is of a kind that the provider runs, and yet a call for this side. */
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
  /** The latest item of each type whose index is not known. */
  private readonly unplaced = new Map<string, Item>()
  private readonly byType = new Map<string, Array<Item>>()

  /** The items of a type, in the order in which they began. */
  ofType(type: string): ReadonlyArray<Item> {
    return this.byType.get(type) ?? []
  }

  /** The items of a type in their order; calls of which only arguments are known come behind those with a header. */
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

  /** The fields of an item. Its first id counts. */
  describe(item: Item, wire: Json.JsonObject): void {
    item.id ??= Wire.string(wire["id"])
    if (item.id !== undefined) this.byId.set(item.id, item)
    item.wire = { ...item.wire, ...wire, ...Wire.defined({ id: item.id }) }
  }

  /** The item that begins: a new one, unless an event of it came before its header, or the header comes again. */
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

  /** The completed item, or nothing if it was completed before. */
  ended(wire: Json.JsonObject, index: unknown): Item | undefined {
    const type = typeOf(wire)
    const id = Wire.string(wire["id"])
    const found = this.find(type, index, id) ?? this.early(type, id)
    if (found?.isDone === true && found.id === id && found.wire?.["call_id"] === wire["call_id"]) return undefined
    return found === undefined || found.isDone ? this.open(type, index) : this.place(found, index)
  }

  /** The item of an event inside it, which may come before its header. */
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

  /** An item of which only events are known: that of the id, or else one whose index they did not name. */
  private early(type: string, id: string | undefined): Item | undefined {
    const named = id === undefined ? undefined : this.byId.get(id)
    const isEarly = (item: Item | undefined) => item?.type === type && item.wire === undefined && !item.isDone
    if (isEarly(named)) return named
    const unplaced = this.unplaced.get(type)
    return isEarly(unplaced) ? unplaced : undefined
  }

  /** The item stands at the index, too, unless another one does. */
  private place(item: Item, index: unknown): Item {
    const key = placeOf(item.type, index)
    if (index !== undefined && !this.byPlace.has(key)) this.byPlace.set(key, item)
    return item
  }

  /** An unknown id is ignored; a known one takes precedence over the index. */
  private find(type: string, index: unknown, id: string | undefined): Item | undefined {
    const placed = this.byPlace.get(placeOf(type, index))
    const named = id === undefined ? undefined : this.byId.get(id)
    if (placed !== undefined && (placed.id === id || named?.type !== type)) return placed
    return named?.type === type ? named : index === undefined ? this.byType.get(type)?.at(-1) : undefined
  }
}
