/**
 * Messages into a running run: a person says "not that file" while the agent works. Each message has one fate: a step
 * received the message, the message was withdrawn, or it was refused because the run ended first.
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
 * Fate of a message. `Delivered`: the step's request contains the message. `Refused`: the run ended first, by
 * `"finished"`, `"waiting"` for an answer, `"stopped"`, `"failed"`, `"max_turns"`, `"halted"` by a tool or by
 * `haltWhen`, or the name of the rule ending the run. `Withdrawn`: by {@link Inbox.withdraw}.
 *
 * @category models
 */
export type Fate = InboxRule.Fate

/**
 * An accepted message.
 *
 * @category models
 */
export interface Sent {
  /** Message id. */
  readonly id: string
  /** Waits for the message's fate. */
  readonly fate: Effect.Effect<Fate>
}

/**
 * Options of a message.
 *
 * @category options
 */
export interface SendOptions {
  /**
   * Message id. Sending the same message again under its id changes nothing; sending another message under that id is a
   * defect. A new id by default.
   */
  readonly id?: string | undefined
  /**
   * Path of a call, such as `"c0"` or `"c0/c1"`: the run inside its handler gets the message; of several such runs, the
   * latest. If none is running, the message is refused with `"finished"`. By default the inbox's own run gets the
   * message.
   */
  readonly to?: string | undefined
}

/**
 * The inbox of a run: the `inbox` option of `Chat.run` and `Chat.stream`. Messages are delivered in the order of
 * acceptance. Messages due at the same time share one request.
 *
 * @category models
 */
export interface Inbox {
  /**
   * Sends a message for the run's next step, or before its end if it would complete. Never delivered before the first
   * step: the run begins with messages of its own.
   */
  readonly steer: (content: Message.Content, options?: SendOptions) => Effect.Effect<Sent>
  /** Sends a message for the moment the run would complete: another step follows, within `maxTurns`. */
  readonly follow: (content: Message.Content, options?: SendOptions) => Effect.Effect<Sent>
  /** Withdraws a message. Succeeds with `false` if the id is unknown, or if the message already has its fate. */
  readonly withdraw: (id: string) => Effect.Effect<boolean>
  /** Returns the fate of a message. `undefined` if the id is unknown, or while the fate is open. */
  readonly fate: (id: string) => Effect.Effect<Fate | undefined>
  /** The messages as consumed by a run. */
  readonly letters: InboxRule.Letters
}

const optionNames = Values.nullable({ id: Values.name, to: CallPaths.kind } satisfies NamesOf<SendOptions>)

const messageOf = (content: Message.Content): Message.Message => {
  // The caller may later change the given content.
  const message = Message.user(Json.copy(content))
  const valid = Thread.validate([message])
  if (Result.isFailure(valid)) throw new TypeError(`the message for the inbox cannot be used: ${valid.failure.message}`)
  return message
}

const isSame = (letter: InboxRule.Letter, mode: InboxRule.Mode, { content }: Message.Message): boolean =>
  letter.mode === mode && Json.isSame(letter.message.content, content)

/**
 * Makes an inbox for a run.
 *
 * **Details**
 *
 * Messages wait until a run takes the inbox. Once the run has ended, new messages are refused with that run's end as
 * the reason, until another run takes the inbox. Passing an inbox already taken by another run is a defect, and so is
 * content unfit for a message. An inbox lives in its process; for messages surviving the process, use a session.
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
