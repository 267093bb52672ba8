/** Details of the chosen call. The sentence about it is a live region. */
import { useMemo, useState } from "react"
import * as Words from "../chat/words.ts"
import type * as Fold from "../data/fold.ts"
import { isNarrow } from "../parts/focus.ts"
import * as Draw from "./draw.ts"
import * as Layouts from "./layout.ts"
import * as Phrases from "./phrases.ts"

/** Characters shown at first of a value. */
const shown = 4_000

/** Returns a value as text with every character visible. */
const textOf = (value: unknown): string =>
  typeof value === "string" || Array.isArray(value) ? Words.marked(Words.contentText(value)) : Words.jsonOf(value)

const Value = (
  { length, name, value }: { readonly name: string; readonly value: unknown; readonly length?: number }
) => {
  const [isWhole, setWhole] = useState(false)
  const text = textOf(value)
  const isCut = !isWhole && text.length > shown
  return (
    <>
      <h4>
        {name}
        {length === undefined ? "" : `, cut from ${length.toLocaleString("en")} characters`}
      </h4>
      <pre tabIndex={0} role="group" aria-label={name}>{isCut ? `${text.slice(0, shown)}…` : text}</pre>
      {isCut && (
        <button type="button" onClick={() => setWhole(true)}>
          Show all {text.length.toLocaleString("en")} characters
        </button>
      )}
    </>
  )
}

interface Properties {
  readonly run: Fold.Run
  readonly layout: Layouts.Layout
  readonly call: Fold.Call | undefined
  readonly now: number
  /** `true` beside the table, which has no bars. */
  readonly isTable: boolean
  readonly onFold: (path: string) => void
  readonly onChoose: (path: string) => void
  readonly onStop?: ((path: string) => void) | undefined
}

/** Most turns listed. */
const mostTurns = 200

export const Detail = ({ call, isTable, layout, now, onChoose, onFold, onStop, run }: Properties) => {
  // Place at the time of choosing: a later call is no news about this call.
  const place = useMemo(() => call === undefined ? "" : `${Phrases.placeOf(run, call)}.`, [run, call])
  return (
    <section className="run-detail" aria-label="The chosen call">
      <p className="hidden" role="status">{call === undefined ? "" : `${Phrases.about(run, call)} ${place}`}</p>
      {call === undefined
        ? (
          <>
            <p className="run-hint">
              {isTable
                ? "Choose a call to see its arguments and its answer."
                : "Choose a call to see its arguments and its answer: click its bar, or use the arrow keys."}
            </p>
            <details open={!isNarrow("run")}>
              <summary>Turns</summary>
              <ol className="run-turns" aria-label="Turns">
                {run.turns.filter(({ owner }) => owner === "").slice(-mostTurns).map((turn) => (
                  <li key={turn.index}>{Phrases.turnOf(turn, now)}</li>
                ))}
              </ol>
            </details>
          </>
        )
        : <Known key={call.path} {...{ call, isTable, layout, now, onChoose, onFold, onStop, run }} />}
    </section>
  )
}

const Known = ({ call, layout, now, onChoose, onFold, onStop, run }: Properties & { readonly call: Fold.Call }) => {
  const block = layout.bars.get(call.path)?.block
  const waited = Phrases.waitedOf(call, now)
  const ran = Words.ranOf(call, now)
  const outer = call.owner === "" ? undefined : run.calls.get(call.owner)
  const reason = Phrases.why(run, call)
  const last = call.waits.findLast(({ reason }) => reason === "key")
  const released = last && Layouts.releaser(run, layout, call, last)
  const usage = Phrases.usageOf(call.usage)
  return (
    <>
      <h3>
        <b>
          <span className={`run-dot ${Draw.colorOf(call)}`} aria-hidden="true" />
          {call.name}
        </b>
        <span>{Phrases.stateOf(call)}</span>
        {outer !== undefined && <span>in {Phrases.nameOf(run, outer)}</span>}
        <span className="run-push">
          {onStop !== undefined && Words.isStoppable(run, call) && (
            <button
              type="button"
              onClick={() => onStop(call.path)}
            >
              Stop this call
            </button>
          )}
          {released !== undefined && (
            <button type="button" onClick={() => onChoose(released.path)}>
              Released by {Phrases.nameOf(run, released)}
            </button>
          )}
          {block !== undefined && (
            <button
              type="button"
              aria-expanded={!block.isFolded}
              onClick={() => onFold(call.path)}
            >
              {block.isFolded ? "Unfold" : "Fold"}
            </button>
          )}
        </span>
      </h3>
      <dl>
        <dt>Asked</dt>
        <dd>
          {Words.seconds(Phrases.readyOf(call))}
          {call.turn < 0 ? ", in an earlier run" : `, turn ${call.turn + 1}`}
        </dd>
        {waited !== undefined && (
          <>
            <dt>Waited</dt>
            <dd>{Words.seconds(waited)}{reason === "" ? "" : `: ${reason}`}</dd>
          </>
        )}
        {ran !== undefined && (
          <>
            <dt>Ran</dt>
            <dd>
              {Words.seconds(ran)}
              {call.attempts.length > 1 ? `, ${call.attempts.length} attempts` : ""}
              {call.abandoned === undefined ? "" : `, left running after ${Words.seconds(call.abandoned)}`}
            </dd>
          </>
        )}
        {usage !== "" && (
          <>
            <dt>Used</dt>
            <dd>{usage}</dd>
          </>
        )}
        {call.code !== undefined && (
          <>
            <dt>Code</dt>
            <dd>{call.code}</dd>
          </>
        )}
        {call.by !== undefined && (
          <>
            <dt>By</dt>
            <dd>{Words.personOf(call.by)}</dd>
          </>
        )}
        {call.detail !== undefined && (
          <>
            <dt>Reason</dt>
            <dd>{call.detail}</dd>
          </>
        )}
        {call.suspension?.question !== undefined && (
          <>
            <dt>Asks</dt>
            <dd>{call.suspension.question}</dd>
          </>
        )}
        {call.argumentsLost !== undefined && (
          <>
            <dt>Arguments</dt>
            <dd>{call.argumentsLost.reason}</dd>
          </>
        )}
      </dl>
      {call.arguments !== undefined && <Value name="Arguments" value={call.arguments} />}
      {call.content !== undefined && (
        <Value
          name="Answer"
          value={call.content}
          {...(call.originalLength === undefined ? {} : { length: call.originalLength })}
        />
      )}
    </>
  )
}
