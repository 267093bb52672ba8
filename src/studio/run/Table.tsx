/** A run's calls as a table: the picture in words. Only visible rows have elements. */
import { type UIEvent, useMemo, useRef, useState } from "react"
import * as Words from "../chat/words.ts"
import type * as Fold from "../data/fold.ts"
import { isNarrow } from "../parts/focus.ts"
import * as Draw from "./draw.ts"
import * as Phrases from "./phrases.ts"

/** Row height in CSS pixels, matching the styles: on a phone a row has two lines. */
const heightOf = (): number => isNarrow("run") ? 78 : 34

/** Extra rows beyond the visible ones. */
const more = 20

/** Row count up to which a table shows all. */
const whole = 200

interface Properties {
  readonly run: Fold.Run
  readonly version: number
  readonly now: number
  readonly chosen: string | undefined
  readonly onChoose: (path: string) => void
}

const time = (millis: number | undefined): string => millis === undefined ? "" : Words.seconds(millis)

const percent = (part: number, all: number): string => `${Math.max(0, Math.min(100, part / all * 100))}%`

const Row = (
  { call, chosen, index, now, number, onChoose, run }: Omit<Properties, "version"> & {
    readonly call: Fold.Call
    readonly index: number
    /** Row count. */
    readonly number: number
  }
) => {
  const all = Math.max(1, now)
  const ready = Phrases.readyOf(call)
  const waited = Phrases.waitedOf(call, now)
  const start = call.started ?? call.ended ?? ready
  const depth = call.owner === "" ? 0 : call.owner.split("/").length
  const ran = Words.ranOf(call, now)
  const why = Phrases.why(run, call)
  const words = Phrases.wordsOf(call)
  const around = run.calls.get(call.owner)
  const outer = around === undefined ? "" : `in ${Phrases.nameOf(run, around)}`
  return (
    <tr aria-rowindex={index + 2} className={call.path === chosen ? "run-chosen" : undefined} data-path={call.path}>
      <th scope="row">
        <span style={{ paddingLeft: depth * 14 }} />
        <button
          type="button"
          aria-pressed={call.path === chosen}
          aria-label={[Phrases.nameOf(run, call), ...outer === "" ? [] : [outer], `${index + 1} of ${number}`].join(
            ", "
          )}
          onClick={() =>
            onChoose(call.path)}
        >
          {call.name}
        </button>
        {words !== "" && <span className="run-words">{words}</span>}
        <span className="run-figures">
          {[
            ...(outer === "" ? [] : [outer]),
            `asked at ${Words.seconds(ready)}`,
            ...(waited === undefined ? [] : [`waited ${time(waited)}${why === "" ? "" : `: ${why}`}`]),
            ...(ran === undefined ? [] : [`ran ${time(ran)}`])
          ].join(", ")}
        </span>
      </th>
      <td>
        <span className={`run-dot ${Draw.colorOf(call)}`} aria-hidden="true" />
        {Words.signOf(call)}
        {Phrases.stateOf(call)}
      </td>
      <td className="run-axis" aria-hidden="true">
        <span className="run-bar">
          {waited !== undefined && (
            <i className="run-wait" style={{ left: percent(ready, all), width: percent(waited, all) }} />
          )}
          {(call.started !== undefined || call.ended !== undefined) && (
            <i
              className={Draw.colorOf(call)}
              style={{ left: percent(start, all), width: percent((call.ended ?? now) - start, all) }}
            />
          )}
        </span>
      </td>
      <td className="run-wide">{Words.seconds(ready)}</td>
      <td className="run-wide">{time(waited)}</td>
      <td className="run-wide">{time(ran)}</td>
      <td className="run-wide run-why">{why}</td>
    </tr>
  )
}

/** A row replacing invisible rows. */
const Gap = ({ height, rows }: { readonly rows: number; readonly height: number }) =>
  rows <= 0 ? null : (
    <tr className="run-gap" aria-hidden="true">
      <td colSpan={7} style={{ height: rows * height }} />
    </tr>
  )

/** Row orders, with their labels. */
const orders: ReadonlyArray<readonly [order: Phrases.Order, words: string]> = [
  ["asked", "As asked"],
  ["waited", "Longest wait"],
  ["ran", "Longest run"]
]

export const Table = ({ chosen, now, onChoose, run, version }: Properties) => {
  const box = useRef<HTMLDivElement>(null)
  const [top, setTop] = useState(0)
  const [order, setOrder] = useState<Phrases.Order>("asked")
  const height = heightOf()
  // A live run's times change their order with its next event.
  const list = useMemo(() => Phrases.ordered(run, order, now), [run, version, order])
  const isWhole = list.length <= whole
  const visible = Math.ceil((box.current?.clientHeight ?? 800) / height)
  const first = isWhole ? 0 : Math.max(0, Math.min(list.length, Math.floor(top / height)) - more)
  const last = isWhole ? list.length : Math.min(list.length, first + visible + 2 * more)
  const onScroll = (event: UIEvent<HTMLDivElement>) => {
    const next = event.currentTarget.scrollTop
    if (!isWhole && Math.abs(next - top) > more * height / 2) setTop(next)
  }
  const sorted = (column: Phrases.Order) =>
    column !== order ? {} : { "aria-sort": column === "asked" ? "ascending" as const : "descending" as const }
  return (
    <>
      <p className="run-order" role="group" aria-label="Order of the calls">
        {orders.map(([each, words]) => (
          <button
            key={each}
            type="button"
            aria-pressed={each === order}
            onClick={() => setOrder(each)}
          >
            {words}
          </button>
        ))}
      </p>
      <div
        ref={box}
        className={isWhole ? "run-table" : "run-table run-even"}
        tabIndex={0}
        role="group"
        aria-label="Calls of the run"
        data-version={version}
        onScroll={onScroll}
      >
        <table aria-rowcount={list.length + 1}>
          <caption className="hidden">{Phrases.sentence(run)}</caption>
          <thead>
            <tr aria-rowindex={1}>
              <th scope="col">Call</th>
              <th scope="col">State</th>
              <th className="run-axis" aria-hidden="true">{Words.seconds(now)}</th>
              <th scope="col" className="run-wide" {...sorted("asked")}>Asked</th>
              <th scope="col" className="run-wide" {...sorted("waited")}>Waited</th>
              <th scope="col" className="run-wide" {...sorted("ran")}>Ran</th>
              <th scope="col" className="run-wide">Why it waited</th>
            </tr>
          </thead>
          <tbody>
            <Gap rows={first} height={height} />
            {list.slice(first, last).map((call, index) => (
              <Row
                key={call.path}
                index={first + index}
                number={list.length}
                {...{ call, chosen, now, onChoose, run }}
              />
            ))}
            <Gap rows={list.length - last} height={height} />
          </tbody>
        </table>
      </div>
    </>
  )
}
