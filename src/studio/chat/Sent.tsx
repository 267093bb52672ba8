/** Messages sent during a run: each shows its fate, and announces it to screen readers. */
import { type ReactNode, useEffect, useRef } from "react"
import type * as Fold from "../data/fold.ts"
import type * as Store from "../data/store.ts"
import { announce } from "../parts/Live.tsx"
import { Long } from "../parts/Long.tsx"
import * as Words from "./words.ts"

const reasons: { readonly [reason: string]: string } = {
  finished: "the run had ended",
  waiting: "the run waits for an answer",
  stopped: "the run was stopped",
  failed: "the run failed",
  max_turns: "the run had reached its turn limit",
  halted: "a call ended the run"
}

const refusal = (reason = ""): string =>
  `not delivered: ${reasons[reason] ?? `the rule “${Words.marked(reason)}” ended the run`}`

const places: { readonly [mode: string]: string } = {
  steer: "waits for the next turn",
  follow: "waits for the end of this run"
}

/** Returns a message's fate in words. */
const fateOf = ({ fate, mode = "next", reason }: Store.Letter): string =>
  fate === undefined
    ? "on its way"
    : fate === "refused"
    ? refusal(reason)
    : fate === "withdrawn"
    ? fate
    : places[mode] ?? "waits for the next run"

/** Returns a message's fate as told by a run. */
const toldOf = ({ reason, turn }: Fold.Sent): string =>
  turn === undefined ? refusal(reason) : `delivered at turn ${turn + 1}`

const sentence = (fate: string): string => `${fate.slice(0, 1).toUpperCase()}${fate.slice(1)}`

/** A message delivered into a run, or refused by its end. */
export const Sent = ({ sent }: { readonly sent: Fold.Sent }): ReactNode => (
  <section className="user">
    <h3 className="hidden">You</h3>
    <div className="said">
      <Long text={Words.saidText(sent.content)} />
    </div>
    <p className="fate">{sentence(toldOf(sent))}</p>
  </section>
)

/** Part of a session with messages. */
export interface Read extends Pick<Store.Snapshot, "running" | "session" | "state" | "waiting"> {
  readonly shown: ReadonlyArray<Store.Shown>
}

/** Returns the known fates of messages in words, by id. A message immediately beginning a run has no fate to tell. */
const fatesIn = ({ running, shown, waiting }: Read): ReadonlyMap<string, string> =>
  new Map([
    ...shown.slice(-2).flatMap(({ message, run }) => [
      ...message?.mode === "steer" || message?.mode === "follow"
        ? [[message.id, "taken by the next run"] as const]
        : [],
      ...run.sent.map((sent) => [sent.id, toldOf(sent)] as const)
    ]),
    ...waiting.flatMap((letter) =>
      letter.fate === undefined || letter.fate === "waiting" && running === undefined
        ? []
        : [[letter.id, fateOf(letter)] as const]
    )
  ])

/** Messages without a run, at the end of the conversation. */
export const Waiting = ({ onWithdraw, snapshot }: {
  readonly snapshot: Read
  /** Withdraws a message. */
  readonly onWithdraw: (letter: Store.Letter) => void
}): ReactNode => {
  const { running, session, state, waiting } = snapshot
  const known = useRef<ReadonlyMap<string, string>>(undefined)
  useEffect(() => {
    if (state === "loading") return
    const fates = fatesIn(snapshot)
    const { current } = known
    known.current = fates
    if (current === undefined) return
    for (const [id, fate] of fates) if (current.get(id) !== fate) announce(`Message ${fate}.`)
  }, [snapshot, state])
  return waiting.map((letter) => {
    const isOpen = letter.fate === undefined || letter.fate === "waiting"
    // A message to an idle session begins its run immediately.
    const isShort = isOpen && running === undefined && letter.mode === undefined
    return (
      <div key={letter.id} className="row waiting">
        <article className="user">
          <h2 className="hidden">You, not read yet</h2>
          <div className="said">{Words.saidText(letter.content).slice(0, 8_000)}</div>
          {!isShort && (
            <p className="fate">
              {sentence(fateOf(letter))}
              {letter.fate === "waiting" && (letter.isOwn === true || session?.canWithdraw === true) && (
                <button
                  type="button"
                  className="quiet"
                  aria-label={`Withdraw: ${Words.marked(Words.saidText(letter.content).slice(0, 60))}`}
                  onClick={() => onWithdraw(letter)}
                >
                  Withdraw
                </button>
              )}
            </p>
          )}
        </article>
      </div>
    )
  })
}
