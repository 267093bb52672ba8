/**
 * Which output item of a Responses reply an event belongs to. Servers make up a new id for every event, give all items
 * the same index, or leave either out; what they tell is put together by type, place and id. Every question takes the
 * same time, however many items there are.
 */
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

/** What a text is to a reader. */
export type Kind = "text" | "refusal" | "thought"

/** Where in an item a text stands. */
export type Place = "content" | "summary"

/** Who tells the whole of a text: an event of the text, one of its part, or the item. */
export type Teller = "text" | "part" | "item"

export interface Piece {
  readonly place: Place
  text: string
  /** Who has told the whole of it. */
  readonly told: Set<Teller>
}

/** The texts of one kind in an item. */
export class Texts {
  /** In the order in which they began. */
  readonly all: Array<Piece> = []
  private readonly byPlace = new Map<string, Piece>()
  /** By teller: the texts before that one have been told. */
  private readonly next = new Map<Teller, number>()

  /** The text at a place, which begins there if there is none. */
  at(place: Place, index: unknown): Piece {
    return this.byPlace.get(`${place}:${String(index)}`) ?? this.begin(place, index)
  }

  /**
   * The text whose whole is told. Servers number the texts of an item in one way while they stream and in another when
   * they repeat them, so that the text at a place counts only as long as no other text that is still to be told is more
   * alike: what a text was before, or goes on with. `isOneOfAll` says that as many texts are told as have begun at most:
   * then the next one at hand is meant, even if it was rewritten.
   */
  whole(teller: Teller, place: Place, index: unknown, whole: string, isOneOfAll: boolean): Piece {
    const own = this.byPlace.get(`${place}:${String(index)}`)
    const next = this.following(teller)
    const isOpen = own !== undefined && !own.told.has(teller)
    const isNext = next !== undefined && (isAlike(next, whole) || (!isOpen && isOneOfAll && next.place === place))
    const found = isOpen && (!isNext || isAlike(own, whole)) ? own : isNext ? next : this.begin(place, index)
    found.told.add(teller)
    return found
  }

  /** The first text that is still to be told. */
  private following(teller: Teller): Piece | undefined {
    let position = this.next.get(teller) ?? 0
    while (this.all[position]?.told.has(teller) === true) position++
    this.next.set(teller, position)
    return this.all[position]
  }

  private begin(place: Place, index: unknown): Piece {
    const piece: Piece = { place, text: "", told: new Set() }
    this.all.push(piece)
    this.byPlace.set(`${place}:${String(index)}`, piece)
    return piece
  }
}

/** Whether one of two texts is the beginning of the other. */
const isAlike = ({ text }: Piece, whole: string): boolean => whole.startsWith(text) || text.startsWith(whole)

export interface Item {
  readonly position: number
  readonly type: string
  id: string | undefined
  /** The item as the wire last told it; nothing for one whose header is missing. */
  wire: Json.JsonObject | undefined
  /** Its texts, by kind. */
  readonly texts: Map<Kind, Texts>
  /** Whether the arguments of a call were told beside it. */
  hasText: boolean
  /** Whether it is of a kind that the provider runs, and yet a call for this side. */
  isOwn: boolean
  isDone: boolean
}

export const typeOf = (wire: Json.JsonObject): string => Wire.string(wire["type"]) ?? "message"

const placeOf = (type: string, index: unknown): string => `${type}:${String(index)}`

export class Items {
  readonly all: Array<Item> = []
  private readonly byPlace = new Map<string, Item>()
  private readonly byId = new Map<string, Item>()
  private readonly byType = new Map<string, Array<Item>>()

  /** The items of a type, in the order in which they began. */
  ofType(type: string): ReadonlyArray<Item> {
    return this.byType.get(type) ?? []
  }

  open(type: string, index: unknown): Item {
    const position = this.all.length
    const item: Item = {
      position,
      type,
      id: undefined,
      wire: undefined,
      texts: new Map(),
      hasText: false,
      isOwn: false,
      isDone: false
    }
    this.all.push(item)
    if (index !== undefined) this.byPlace.set(placeOf(type, index), item)
    const alike = this.byType.get(type)
    if (alike === undefined) this.byType.set(type, [item])
    else alike.push(item)
    return item
  }

  /** What the wire tells of an item. Its first id counts. */
  tell(item: Item, wire: Json.JsonObject): void {
    item.id ??= Wire.string(wire["id"])
    if (item.id !== undefined) this.byId.set(item.id, item)
    item.wire = { ...item.wire, ...wire, ...Wire.given("id", item.id) }
  }

  /** The item that begins: a new one, unless an event of it came before its header, or the header comes again. */
  begun(wire: Json.JsonObject, index: unknown): Item {
    const type = typeOf(wire)
    const placed = this.byPlace.get(placeOf(type, index))
    const isKnown = placed?.isDone === false && (placed.wire === undefined || placed.id === Wire.string(wire["id"]))
    return isKnown ? placed : this.open(type, index)
  }

  /** The item that is complete, or nothing if that is told once more. */
  ended(wire: Json.JsonObject, index: unknown): Item | undefined {
    const type = typeOf(wire)
    const id = Wire.string(wire["id"])
    const found = this.find(type, index, id)
    if (found?.isDone === true && found.id === id && found.wire?.["call_id"] === wire["call_id"]) return undefined
    return found === undefined || found.isDone ? this.open(type, index) : found
  }

  /** The item of an event inside it, which may come before its header. */
  of(type: string, event: Json.JsonObject): Item {
    const index = event["output_index"]
    return this.find(type, index, Wire.string(event["item_id"])) ?? this.open(type, index)
  }

  /** An id that is unknown says nothing; one that is known outweighs the index. */
  private find(type: string, index: unknown, id: string | undefined): Item | undefined {
    const placed = this.byPlace.get(placeOf(type, index))
    const named = id === undefined ? undefined : this.byId.get(id)
    if (placed !== undefined && (placed.id === id || named?.type !== type)) return placed
    return named?.type === type ? named : index === undefined ? this.byType.get(type)?.at(-1) : undefined
  }
}
