/**
 * A conversation that is kept: it stops to ask, waits for a person or for another system, and goes on, in this process or
 * the next. A session is plain data, its store an append-only journal.
 *
 * @since 0.1.0
 */
import * as Conversation from "./Conversation.ts"
import * as Journal from "./Journal.ts"

export {
  /**
   * @category constructors
   * @since 0.1.0
   */
  make
} from "./Conversation.ts"

/**
 * @see {@link Conversation.Session}
 *
 * @category schemas
 * @since 0.1.0
 */
export const Session = Conversation.Session

/**
 * @see {@link Session}
 *
 * @category models
 * @since 0.1.0
 */
export type Session = Conversation.Session

/**
 * @see {@link Conversation.Answer}
 *
 * @category models
 * @since 0.1.0
 */
export type Answer = Conversation.Answer

/**
 * @see {@link Conversation.Status}
 *
 * @category models
 * @since 0.1.0
 */
export type Status = Conversation.Status

/**
 * One thing that happened in a session.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Record = Journal.Record

/**
 * @see {@link Record}
 *
 * @category models
 * @since 0.1.0
 */
export type Record = Journal.Record

/**
 * A record in its place.
 *
 * @category models
 * @since 0.1.0
 */
export type Entry = Journal.Entry

export {
  /**
   * Somebody else wrote to the session first.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionConflict,
  /**
   * The store of sessions: a service, with `Session.Store.layerMemory`.
   *
   * @category services
   * @since 0.1.0
   */
  Store,
  /**
   * A store could not do what it was asked.
   *
   * @category errors
   * @since 0.1.0
   */
  StoreError
} from "./Journal.ts"

/**
 * What makes a store of your own: the text of a record and back, and reading page by page.
 *
 * @category encoding
 * @since 0.1.0
 */
export const Texts = { toText: Journal.toText, fromText: Journal.fromText, pages: Journal.pages }

/**
 * What a store can do.
 *
 * @category models
 * @since 0.1.0
 */
export type StoreService = Journal.Service
