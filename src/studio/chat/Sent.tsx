/** Messages that were sent while a run was under way: each has its fate, which is also said. */
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
  max_turns: "the run had reached its most turns",
  halted: "a call ended the run"
}

const refusal = (reason = ""): string =>
  `not delivered: ${reasons[reason] ?? `the rule “${Words.marked(reason)}” ended the run`}`

const places: { readonly [mode: string]: string } = {
  steer: "waits for the next turn",
  follow: "waits for the end of this run"
}

/** Returns the fate of a message in words. */
const fateOf = ({ fate, mode = "next", reason }: Store.Letter): string =>
  fate === undefined
    ? "on its way"
    : fate === "refused"
    ? refusal(reason)
    : fate === "withdrawn"
    ? fate
    : places[mode] ?? "waits for the next run"

/** Returns the fate of a message that a run has told. */
const toldOf = ({ reason, turn }: Fold.Sent): string =>
  turn === undefined ? refusal(reason) : `delivered at turn ${turn + 1}`

const sentence = (fate: string): string => `${fate.slice(0, 1).toUpperCase()}${fate.slice(1)}`

/** A message that was delivered into a run, or refused by its end. */
export const Sent = ({ sent }: { readonly sent: Fold.Sent }): ReactNode => (
  <section className="user">
    <h3 className="hidden">You</h3>
    {sent.content !== undefined && (
      <div className="said">
        <Long text={Words.saidText(sent.content)} />
      </div>
    )}
    <p className="fate">{sent.content === undefined ? `A message was ${toldOf(sent)}` : sentence(toldOf(sent))}</p>
  </section>
)

/** The part of a session that has messages. */
export interface Read extends Pick<Store.Snapshot, "running" | "session" | "state" | "waiting"> {
  readonly shown: ReadonlyArray<Store.Shown>
}

/** Returns what is known of the messages, by id: a fate in words. One that begins a run at once has none. */
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

/** The messages that no run has, at the end of the conversation. */
export const Waiting = ({ onWithdraw, snapshot }: {
  readonly snapshot: Read
  /** Takes a message back. */
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
    // A message to a session at rest begins its run at once.
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
