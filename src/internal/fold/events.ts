/** Events that come together. A reader is handed some at least. */
import type * as Arr from "effect/Array"
import type * as Event from "../../Event.ts"

export type Events = Arr.NonEmptyReadonlyArray<Event.Event>

export const isNonEmpty = (events: ReadonlyArray<Event.Event>): events is Events => events.length > 0
