/**
 * The conversation of this start. With a name it is kept in a file and the next start goes on with it; what happens is
 * written down as it happens, so that the next start resumes the run of one that was killed. Without a name it is a
 * conversation in memory, which ends with the process.
 */
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as Path from "effect/Path"
import { type Chat, Message, Session, type Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { hostname } from "node:os"
import { detailOf } from "./problem.ts"
import * as Settings from "./settings.ts"

const unusable = (folder: string, detail: string): Settings.BadSetting =>
  new Settings.BadSetting({ setting: `--sessions ${folder}`, problem: detail })

/** The store in the file of a folder, which is made, for its owner only, if it is not there. */
const inFolder = (folder: string) =>
  Layer.unwrap(Effect.gen(function*() {
    const fs = yield* FileSystem.FileSystem
    const path = yield* Path.Path
    const root = path.resolve(folder)
    yield* Effect.mapError(
      fs.makeDirectory(root, { recursive: true, mode: 0o700 }),
      (error) => unusable(folder, detailOf(error))
    )
    const store = SessionStore.layerSqlite({ filename: path.join(root, "sessions.db") })
    return Layer.catch(store, (error) => Layer.effect(Session.Store, Effect.fail(unusable(folder, error.message))))
  }))

/** The store of the conversation, which is in memory where it is not kept. */
export const layer = (place: Settings.Place | undefined) =>
  place === undefined ? Session.Store.layerMemory : inFolder(place.folder)

/** Says which process has a conversation. */
const owner = `process ${process.pid} on ${hostname()}`

/** Returns whether an owner is a process of this machine that is not there any more. It cannot give its claim back itself. */
const isGone = (owner: string): boolean => {
  const [, id, host] = /^process (\d+) on (.*)$/.exec(owner) ?? []
  if (id === undefined || host !== hostname()) return false
  try {
    process.kill(Number(id), 0)
    return false
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ESRCH"
  }
}

const claim = (id: string) => Session.claim(id, { owner, term: "10 seconds" })

/** The conversation as it stands now, which no other start can go on with until the scope closes. */
export const open = (place: Settings.Place | undefined) => {
  const id = place?.name ?? "unnamed"
  return Effect.catchTag(claim(id), "SessionClaimed", (held) =>
    isGone(held.owner)
      ? Effect.andThen(Session.Store.use((store) => store.release(id, held.owner)), claim(id))
      : Effect.fail(held))
}

/**
 * The conversation without the run that was interrupted, whose last turn is closed with what is known of its calls. One that
 * had ended with a question to the user has nothing left to do.
 */
export const givenUp = (kept: Session.Claimed): ReturnType<typeof closed> =>
  isInterrupted(kept) && kept.session.suspensions.length === 0 ? closed(kept) : Effect.succeed(kept)

const closed = (kept: Session.Claimed) => Effect.map(Session.abandon(kept), (outcome): Session.Claimed => outcome)

/** The conversation after a run, under the same claim. */
export const reopen = ({ claim, id, owner }: Session.Claimed) =>
  Effect.map(Session.open(id), (opened): Session.Claimed => ({ ...opened, claim, owner }))

/** The questions that wait for the user, in the order in which they were asked. */
export const questions = ({ session }: Session.Kept) =>
  session.suspensions.filter((suspension) => suspension.kind === "question")

/** Returns whether the process of the last start ended before its run did. */
export const isInterrupted = ({ interrupted }: Session.Kept): boolean => interrupted !== undefined

/** Returns whether the last start was stopped before the model had said its last word. */
export const isUnfinished = ({ session }: Session.Kept): boolean => {
  const last = session.thread.messages.at(-1)
  return session.suspensions.length === 0 && last !== undefined && last.role !== "assistant"
}

/** Returns how far the conversation is, as it is shown. */
export const standing = ({ name }: Settings.Place, { session }: Session.Kept): string => {
  const { length } = session.thread.messages
  return length === 0 ? `session ${name} begins` : `session ${name} goes on after ${length} messages`
}

/** Answers one of several questions that wait. The model is asked when all of them have their answer. */
const answered = (kept: Session.Claimed, id: string, text: string) =>
  Effect.map(
    Session.keep(kept, (session) => Session.answer(session, id, text)),
    (outcome): Session.Claimed => outcome
  )

/**
 * The words of the next run, and the conversation that it says it in. Without words it goes on where it was. A run that was
 * interrupted is finished first; `later` is said after it.
 */
export interface Turn {
  readonly kept: Session.Claimed
  readonly words: string | undefined
  readonly later?: string
  /** The id of the words that were said while an earlier run worked. */
  readonly takes?: string
}

/** Says something into the run under way. What a run ends without waits for the next one. */
export const steer = ({ id }: Session.Claimed, words: string, messageId: string) =>
  Session.submit(id, words, { id: messageId, mode: "steer" })

/** What became of what was said into a run that has ended. Where there is no next turn it is refused, for that reason. */
export const fate = (kept: Session.Claimed, messageId: string, reason: string | undefined): string => {
  const receipt = Session.receipt(kept, messageId)
  if (receipt?.became === "delivered") return `delivered in step ${(receipt.stepIndex ?? 0) + 1}`
  return reason === undefined ? "left for the next turn" : `refused: ${reason}`
}

/** The next turn with what an earlier run ended without, if there is such a message and no question is open. */
export const left = (kept: Session.Claimed): Turn | undefined => {
  const [first] = isInterrupted(kept) || questions(kept).length > 0 ? [] : kept.submitted ?? []
  return first === undefined ? undefined : { kept, words: Message.text(first.message), takes: first.id }
}

/**
 * Takes what the user said. Where several questions wait it answers the first of them, and there is something to run only
 * after the last one.
 */
export const take = (kept: Session.Claimed, words: string) =>
  Effect.gen(function*() {
    if (isInterrupted(kept)) return { kept, words: undefined, later: words } satisfies Turn
    const [question, ...others] = questions(kept)
    if (question === undefined || (others.length === 0 && kept.session.answered.length === 0)) {
      return { kept, words } satisfies Turn
    }
    return { kept: yield* answered(kept, question.id, words), words: undefined } satisfies Turn
  })

/** A run that broke leaves a session that nothing goes on from; what was said before it broke is still good. */
const mended = (session: Session.Session): Session.Session => {
  const { context, id, status, thread } = session
  return status === "error" ? Session.make({ ...id === undefined ? {} : { id }, thread, context }) : session
}

/** The events of a run, which is written down while it runs. One that was interrupted is resumed. */
export const run = <const T extends ReadonlyArray<Tool.Any>>(
  { kept, takes, words }: Turn,
  options: Chat.Options<T>
) => {
  if (isInterrupted(kept)) return Session.streamResume(kept, options)
  return Session.keepStream(kept, (session) =>
    words === undefined
      ? Session.streamContinue(mended(session), null, options)
      : Session.streamReply(mended(session), words, { ...options, ...takes === undefined ? {} : { takes } }))
}
