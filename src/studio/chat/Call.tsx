/** A tool call as an expandable one-line card. */
import { type ReactNode, useEffect, useState } from "react"
import type * as Fold from "../data/fold.ts"
import { Icon } from "../parts/Icon.tsx"
import { Long } from "../parts/Long.tsx"
import * as Words from "./words.ts"

/** Running time, growing while shown. `from` is the time already passed, in milliseconds. */
const Elapsed = ({ from }: { readonly from: number }): ReactNode => {
  const [start] = useState(() => performance.now() - from)
  const [now, setNow] = useState(() => performance.now())
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 500)
    return () => clearInterval(timer)
  }, [])
  return Words.seconds(now - start)
}

const Section = ({ text, title }: { readonly title: string; readonly text: string }): ReactNode => (
  <>
    <p className="title">{title}</p>
    <pre tabIndex={0}><Long text={Words.marked(text)} /></pre>
  </>
)

/** State of a call, with its time, its attempts, and the person who denied or stopped the call. */
const State = ({ call, now }: { readonly call: Fold.Call; readonly now: number }): ReactNode => {
  const ran = Words.ranOf(call, now)
  const tries = call.attempts.length > 1 ? `, attempt ${call.attempts.length}` : ""
  const isByPerson = call.state === "denied" || call.state === "cancelled"
  const by = isByPerson && call.by !== undefined ? ` by ${Words.personOf(call.by)}` : ""
  return (
    <span className="state">
      {Words.marked(Words.stateOf(call) + by)}
      {call.state === "running"
        ? (
          <>
            {" "}
            <Elapsed from={ran ?? 0} />
          </>
        )
        : ran === undefined
        ? ""
        : ` ${Words.seconds(ran)}`}
      {tries}
    </span>
  )
}

/** Returns the line under a card adding to its state: progress, an error, or the reason for a denial. */
const noteOf = (call: Fold.Call): string => {
  if (call.state === "failed") return Words.marked(Words.errorOf(call.content).slice(0, 400))
  // Its state shows the denial, and its sender.
  if (call.state === "denied") return Words.marked((call.detail ?? "").slice(0, 400))
  if (call.progress === undefined || call.state !== "running") return ""
  return typeof call.progress === "string" ? Words.marked(call.progress.slice(0, 400)) : Words.brief(call.progress, 400)
}

const argumentsOf = (call: Fold.Call): string =>
  call.argumentsLost?.text ?? (call.arguments === undefined ? call.argumentsText : Words.jsonOf(call.arguments))

/** Returns the calls of a nested run. */
const innerOf = (run: Fold.Run, call: Fold.Call): ReadonlyArray<Fold.Call> =>
  run.turns.filter(({ owner }) => owner === call.path).flatMap(({ calls }) =>
    calls.flatMap((path) => run.calls.get(path) ?? [])
  )

/** Returns the nested agent's texts, except the text answering the call. */
const saidOf = (run: Fold.Run, call: Fold.Call): string => {
  const texts = run.turns.filter(({ owner }) => owner === call.path).map(({ text }) => text.trim())
  const isAnswer = call.content !== undefined && texts.at(-1) === Words.contentText(call.content).trim()
  return (isAnswer ? texts.slice(0, -1) : texts).filter((text) => text !== "").join("\n\n")
}

/** A call, changed in place by its run. */
const Call = ({ call, onStop, run }: {
  readonly run: Fold.Run
  readonly call: Fold.Call
  readonly onStop: ((path: string) => void) | undefined
}): ReactNode => {
  const [isOpen, setOpen] = useState(false)
  const now = run.end ?? run.now
  const note = noteOf(call)
  const inner = isOpen ? innerOf(run, call) : []
  const said = isOpen ? saidOf(run, call) : ""
  const text = isOpen ? argumentsOf(call) : ""
  return (
    <div className="call" data-state={call.state}>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <span className="dot" aria-hidden="true" />
          <strong>
            {Words.signOf(call)}
            {Words.marked(call.name)}
          </strong>
          <code>{Words.brief(call.arguments ?? (call.argumentsText === "" ? {} : call.argumentsText))}</code>
          <State call={call} now={now} />
        </summary>
        {isOpen && (
          <div className="body">
            {text !== "" && text !== "{}" && (
              <Section
                title={call.argumentsLost !== undefined
                  ? `Arguments (${call.argumentsLost.reason})`
                  : call.original !== undefined
                  ? "Arguments, changed by the approval"
                  : "Arguments"}
                text={text}
              />
            )}
            {call.original !== undefined && (
              <Section title="Arguments from the model" text={Words.jsonOf(call.original)} />
            )}
            {said.trim() !== "" && <Section title="Said by its agent" text={said} />}
            {inner.map((each) => <Call key={each.path} run={run} call={each} onStop={onStop} />)}
            {call.content !== undefined && (
              <Section title={call.state === "failed" ? "Error" : "Answer"} text={Words.contentText(call.content)} />
            )}
            {call.originalLength !== undefined && (
              <p className="title">
                The whole answer had {call.originalLength.toLocaleString("en")} characters; the model read this part.
              </p>
            )}
          </div>
        )}
      </details>
      {onStop !== undefined && Words.isStoppable(run, call) && (
        <button
          type="button"
          className="quiet stop"
          aria-label={`Stop ${Words.titleOf(call)}`}
          title="Stop this call"
          onClick={() => onStop(call.path)}
        >
          <Icon name="stop" />
        </button>
      )}
      {note !== "" && <p className="note">{note}</p>}
    </div>
  )
}

/** Maximum number of consecutive calls shown as cards without a group line. */
const mostCards = 4

/** States in the order in which they color a group line: the first state held by any call wins. */
const telling = ["asks", "running", "waiting", "failed", "denied", "cancelled"] as const

const stateOfAll = (calls: ReadonlyArray<Fold.Call>): Fold.State =>
  telling.find((state) => calls.some((call) => call.state === state)) ?? "done"

/** Consecutive calls. More than four are folded under one line. */
export const Calls = ({ calls, onStop, run }: {
  readonly run: Fold.Run
  /** Stops a call, by its path. Absent if no call can be stopped. */
  readonly onStop?: ((path: string) => void) | undefined
  readonly calls: ReadonlyArray<Fold.Call>
}): ReactNode => {
  const [isOpen, setOpen] = useState(false)
  const cards = () => calls.map((call) => <Call key={call.path} run={run} call={call} onStop={onStop} />)
  if (calls.length <= mostCards) return cards()
  const names = [...new Set(calls.map(({ name }) => name))]
  const number = (state: Fold.State) => calls.filter((call) => call.state === state).length
  const states = (["running", "waiting", "asks", "failed", "denied", "cancelled"] as const).flatMap((state) => {
    const found = number(state)
    return found === 0 ? [] : [`${found} ${state === "cancelled" ? "stopped" : state === "asks" ? "ask" : state}`]
  })
  const shown = names.slice(0, 6).map((name) => Words.marked(name.slice(0, 60))).join(", ")
  return (
    <details className="calls" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary data-state={stateOfAll(calls)}>
        <span className="dot" aria-hidden="true" />
        <span className="names">
          <strong>{calls.length.toLocaleString("en")} calls</strong>: {shown}
          {names.length > 6 ? `, ${names.length - 6} more` : ""}
        </span>
        <span className="state">{states.join(", ")}</span>
      </summary>
      {isOpen && cards()}
    </details>
  )
}
