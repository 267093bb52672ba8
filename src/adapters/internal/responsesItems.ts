/**
 * Which output item of a Responses reply an event belongs to. Servers make up a new id for every event, give all items
 * the same index, or leave either out; what they tell is put together by type, place and id. Every question takes the
 * same time, however many items there are.
 */
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

/** What a text is to a reader. */
export type Kind = "text" | "refusal" | "thought"

export interface Piece {
  readonly kind: Kind
  text: string
}

export interface Item {
  readonly position: number
  readonly type: string
  id: string | undefined
  /** The item as the wire last told it; nothing for one whose header is missing. */
  wire: Json.JsonObject | undefined
  /** Its texts, in the order in which they began. */
  readonly pieces: Map<string, Piece>
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
      pieces: new Map(),
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
