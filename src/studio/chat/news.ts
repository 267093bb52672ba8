/** Session news for a screen reader: each event once, and nothing from before the session was opened. */
import { useEffect, useRef } from "react"
import type * as Fold from "../data/fold.ts"
import type * as Store from "../data/store.ts"
import { announce } from "../parts/Live.tsx"
import { plainOf } from "../parts/plain.ts"
import type { Answer, Suspension } from "./Approval.tsx"
import * as Words from "./words.ts"

/** Known state of a session, whose runs change in place. */
interface Known {
  /** `true` if the session was opened, rather than begun here. */
  readonly isOpened: boolean
  readonly state: Store.Snapshot["state"]
  readonly isStopping: boolean
  readonly isFailed: boolean
  readonly running: string | undefined
  /** Id of the last ended run. A short run is never seen under way. */
  readonly ended: string | undefined
  /** Number of calls already failed in the run under way. */
  readonly failed: number
  readonly left: string
}

const knownOf = (known: Known | undefined, snapshot: Store.Snapshot, left: string): Known => {
  const { isFailed, isStopping, running, state } = snapshot
  return {
    isOpened: known?.isOpened ?? state !== "new",
    state,
    isStopping,
    isFailed,
    running: running?.id,
    ended: endedIn(snapshot)?.id,
    failed: running?.counts.failed ?? 0,
    left
  }
}

/** Returns the last run, if it has ended. */
const endedIn = ({ shown }: Store.Snapshot): Fold.Run | undefined => {
  const run = shown.at(-1)?.run
  return run?.end === undefined ? undefined : run
}

/** Describes the end of a run. Waiting calls announce themselves. */
const endOf = (run: Fold.Run, { suspensions }: Store.Snapshot): ReadonlyArray<string> => {
  if (suspensions.length > 0 || run.counts.asks > 0) return []
  const text = run.turns.findLast(({ owner }) => owner === "")?.text ?? ""
  return [Words.endOf(run)?.text ?? plainOf(text, 300), Words.leftOf(run)]
}

/** Returns a sentence for each newly failed call, three at most. */
const failedOf = ({ failed, running }: Known, run: Fold.Run | undefined): ReadonlyArray<string> => {
  if (run === undefined) return []
  const before = running === run.id ? failed : 0
  if (run.counts.failed <= before) return []
  const calls = run.list.filter(({ state }) => state === "failed")
    .toSorted((left, right) => (left.ended ?? 0) - (right.ended ?? 0))
  return calls.slice(before).slice(-3).map((call) => `${Words.titleOf(call)} has failed.`)
}

const newsOf = (known: Known | undefined, snapshot: Store.Snapshot, left: string): ReadonlyArray<string> => {
  const { agent, isFailed, isStopping, running, session, state } = snapshot
  const works = running === undefined ? [] : ["The agent works."]
  if (known === undefined) return state === "new" ? [`New chat with ${agent}.`] : []
  if (known.isOpened && known.state === "loading") {
    if (state !== "ready") return []
    const title = session?.title ?? ""
    return [`${title === "" ? "Untitled" : plainOf(title)}.`, ...works, ...isFailed ? ["The last run has failed."] : []]
  }
  const news: Array<string> = []
  const ended = endedIn(snapshot)
  if (ended !== undefined && ended.id !== known.ended) {
    news.push(...failedOf(known, ended), ...endOf(ended, snapshot))
  }
  if (running !== undefined && known.running !== running.id) news.push(...works)
  if (isStopping && !known.isStopping) news.push("Stopping.")
  if (isFailed && !known.isFailed && news.length === 0) news.push("The run has failed.")
  if (left !== known.left) news.push(left)
  return [...news, ...failedOf(known, running)]
}

/** Announces session news. `left` describes calls left running by a stop beyond the run's own report. */
export const useNews = (snapshot: Store.Snapshot, left: string): void => {
  const known = useRef<Known>(undefined)
  useEffect(() => {
    const news = newsOf(known.current, snapshot, left)
    known.current = knownOf(known.current, snapshot, left)
    for (const sentence of news) announce(Words.marked(sentence))
  }, [snapshot, left])
}

/** Announces decisions. */
export const announceAnswers = (suspensions: ReadonlyArray<Suspension>, answers: ReadonlyArray<Answer>): void => {
  for (const { approve, id } of answers) {
    const call = suspensions.find((suspension) => suspension.id === id)?.toolCall
    const title = call === undefined ? "" : `: ${Words.titleOf(call)}`
    announce(`${approve === undefined ? "Answered" : approve ? "Allowed" : "Denied"}${title}.`)
  }
}
