/**
 * Messages into a running run: a person says "not that file" while the agent works. Each message has one fate: a step
 * got it, it was withdrawn, or it was refused since the run ended without it.
 *
 * @since 0.1.0
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as CallPaths from "./internal/answer/callPath.ts"
import * as Settings from "./internal/ask/options.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as Json from "./internal/json.ts"
import * as InboxRule from "./internal/loop/inboxRule.ts"
import * as Message from "./Message.ts"
import * as Thread from "./Thread.ts"

/**
 * The fate of a message. `Delivered`: the request of that step has the message. `Refused`: the run ended without it, by
 * `"finished"`, `"waiting"` for an answer, `"stopped"`, `"failed"`, `"max_turns"`, `"halted"` by a tool or by
 * `haltWhen`, or the name of the rule that ended the run. `Withdrawn`: by {@link Inbox.withdraw}.
 *
 * @category models
 * @since 0.1.0
 */
export type Fate = InboxRule.Fate

/**
 * A message that was accepted.
 *
 * @category models
 * @since 0.1.0
 */
export interface Sent {
  /** The id of the message. */
  readonly id: string
  /** Waits for the fate of the message. */
  readonly fate: Effect.Effect<Fate>
}

/**
 * The options of a message.
 *
 * @category options
 * @since 0.1.0
 */
export interface SendOptions {
  /**
   * The id of the message. The same message under the same id is accepted once; another message under that id is a
   * defect. A new id by default.
   */
  readonly id?: string | undefined
  /**
   * The path of a call, such as `"c0"` or `"c0/c1"`, whose handler has a run under way: that run gets the message, of
   * several the one begun last. Where none is under way, the message is refused with `"finished"`. The run of the inbox
   * gets it by default.
   */
  readonly to?: string | undefined
}

/**
 * The inbox of a run: the option `inbox` of `Chat.run` and `Chat.stream`. Messages are delivered in the order in which
 * they are accepted, those that are due together in one request.
 *
 * @category models
 * @since 0.1.0
 */
export interface Inbox {
  /**
   * Sends a message that the run gets before its next step, and before its end where it would complete. Not before the
   * first step: the run begins with messages of its own.
   */
  readonly steer: (content: Message.Content, options?: SendOptions) => Effect.Effect<Sent>
  /** Sends a message that the run gets when it would complete: another step follows, within `maxTurns`. */
  readonly follow: (content: Message.Content, options?: SendOptions) => Effect.Effect<Sent>
  /** Takes a message back. `false` if there is none of this id, or if its fate is known. */
  readonly withdraw: (id: string) => Effect.Effect<boolean>
  /** The fate of a message. `undefined` if there is no message of this id, or while its fate is open. */
  readonly fate: (id: string) => Effect.Effect<Fate | undefined>
  /** The messages, as a run takes them. */
  readonly letters: InboxRule.Letters
}

const optionNames = Values.nullable({ id: Values.name, to: CallPaths.kind } satisfies NamesOf<SendOptions>)

const messageOf = (content: Message.Content): Message.Message => {
  // The caller may change what it has given.
  const message = Message.user(Json.copy(content))
  const valid = Thread.validate([message])
  if (Result.isFailure(valid)) throw new TypeError(`a message of an inbox: ${valid.failure.message}`)
  return message
}

const isSame = (letter: InboxRule.Letter, mode: InboxRule.Mode, { content }: Message.Message): boolean =>
  letter.mode === mode && Json.isSame(letter.message.content, content)

/**
 * Makes an inbox for a run.
 *
 * **Details**
 *
 * Messages wait for the run until it takes the inbox. Once the run has ended, a message is refused with the reason of
 * that end, until another run takes the inbox. An inbox that another run has is a defect, and so is a content that is
 * no message. An inbox lives in its process: a session takes messages that survive it.
 *
 * **Example** (A word to a run that works)
 *
 * ```ts import.meta.vitest
 * import { Chat, Inbox, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const inbox = Inbox.make()
 * const read = Tool.make("read", {
 *   parameters: {},
 *   handler: () => Effect.as(inbox.steer("Not that file."), "secrets")
 * })
 * const asks = [Script.toolCall("c0", "read", {}), Script.finish("tool_calls")]
 * const answer = [Script.text("I stop reading it."), Script.finish("stop")]
 * const run = Chat.run("Read the notes.", { tools: [read], inbox })
 * const result = await Effect.runPromise(Effect.provide(run, Script.layer([asks, answer])))
 *
 * result.thread.messages.map(({ role }) => role) // => ["user", "assistant", "tool", "user", "assistant"]
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = (): Inbox => {
  const letters = new InboxRule.Letters()
  const send = (name: string, mode: InboxRule.Mode) => (content: Message.Content, options: SendOptions = {}) =>
    Effect.sync((): Sent => {
      checkNames(`Inbox.${name}`, options, optionNames)
      const id = options.id ?? globalThis.crypto.randomUUID()
      const message = messageOf(content)
      const { path } = CallPaths.parse(options.to) ?? {}
      const inside = path === undefined ? undefined : letters.inside(path)
      const known = letters.get(id) ?? inside?.get(id)
      if (known !== undefined && !isSame(known, mode, message)) {
        throw new TypeError(
          `Inbox.${name}: another message has the id ${JSON.stringify(id)}; give each message its own`
        )
      }
      const letter = known ?? new InboxRule.Letter(id, mode, message)
      if (path === undefined) letters.accept(letter)
      else if (letters.get(id) === undefined) letters.forward(letter, inside)
      return { id, fate: Deferred.await(letter.told) }
    })
  const inbox: Inbox = {
    steer: send("steer", "steer"),
    follow: send("follow", "follow"),
    withdraw: (id) => Effect.sync(() => letters.withdraw(id)),
    fate: (id) => Effect.sync(() => letters.get(id)?.fate),
    letters
  }
  Settings.madeInboxes.add(inbox)
  return inbox
}
