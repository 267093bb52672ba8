/**
 * What one call's end does to its siblings: which calls they are, which of them are interrupted, and whether those that
 * wait still run.
 */
import type * as Policy from "../../Policy.ts"
import type * as Answers from "../answer/answer.ts"

export interface Consequence {
  /** Whether handlers that block interruption are interrupted as well. */
  readonly isForAll: boolean
  readonly isSkipping: boolean
  /** A halt ends the turn; a failure concerns those that run beside it. */
  readonly isHalt: boolean
  readonly detail: string
}

type Siblings = Policy.Policy["siblings"]

const isTrigger = (siblings: Siblings, answer: Answers.Answer): boolean =>
  answer.failure === "crashed" || (answer.failure === "reported" && siblings.trigger === "crashedOrReported")

/** The consequence of an answer, if it has one. An exclusive call that failed ran alone, so no call is beside it. */
export const consequence = (
  siblings: Siblings,
  answer: Answers.Answer,
  isExclusive: boolean
): Consequence | undefined => {
  const onHalt = answer.halt === undefined ? "drain" : siblings.onHalt
  const onFailure = isTrigger(siblings, answer) && !isExclusive ? siblings.onToolError : "drain"
  if (onHalt === "drain" && onFailure === "drain") return undefined
  const isHalt = onHalt !== "drain"
  return {
    isForAll: onHalt === "abortAll" || onFailure === "abortAll",
    isSkipping: siblings.queued === "skip",
    isHalt,
    detail: isHalt ? "another call of the turn ended it" : "a call beside it failed"
  }
}

/** A call that has a place. */
interface Placed {
  /** It waits for permits, and so is no further than those that have no place yet. */
  readonly isWaiting: boolean
  readonly job: { readonly index: number; readonly isBlocking: boolean }
}

/** Whether a call is stopped by the end of another one. One that waits is skipped or not, as those in the queue are. */
export const isReached = ({ isForAll, isSkipping }: Consequence, { isWaiting, job }: Placed): boolean =>
  isWaiting ? isSkipping : isForAll || !job.isBlocking

/** The calls that have a place, in the order in which they got it, and which of them had it at the same time. */
export class Company<Member extends Placed> {
  /** Those that are there, and how many had come before each. */
  private readonly members = new Map<Member, number>()
  /** By the position of a call that has left: how many had come by then. */
  private readonly before: Array<number | undefined> = []
  private count = 0

  join(member: Member): void {
    this.members.set(member, this.count++)
  }

  leave(member: Member): void {
    this.members.delete(member)
    this.before[member.job.index] = this.count
  }

  get all(): ReadonlyArray<Member> {
    return Array.from(this.members.keys())
  }

  /** Those that were there at the same time as a call, itself included as long as it is there. */
  beside(index: number): ReadonlyArray<Member> {
    const before = this.before[index] ?? Infinity
    return Array.from(this.members).filter(([, earlier]) => earlier < before).map(([member]) => member)
  }
}
