/**
 * A set in the order of its members, which mostly has one: that one takes no table. Each run has some of them, and of
 * runs there may be many.
 */

export class Few<A extends {}> {
  private first: A | undefined
  private others: Set<A> | undefined

  get size(): number {
    return (this.first === undefined ? 0 : 1) + (this.others?.size ?? 0)
  }

  has(member: A): boolean {
    return this.first === member || this.others?.has(member) === true
  }

  add(member: A): void {
    if (this.size === 0) this.first = member
    else if (this.first !== member) (this.others ??= new Set()).add(member)
  }

  /** Whether it was there. */
  delete(member: A): boolean {
    if (this.first !== member) return this.others?.delete(member) === true
    this.first = undefined
    return true
  }

  clear(): void {
    this.first = undefined
    this.others = undefined
  }

  /** Visits the members that are there now; one that has left by its turn is passed over. */
  forEach(visit: (member: A) => void): void {
    if (this.others === undefined) {
      if (this.first !== undefined) visit(this.first)
      return
    }
    for (const member of this.all) {
      if (this.has(member)) visit(member)
    }
  }

  /** The members as they are now, in the order in which they came. */
  get all(): ReadonlyArray<A> {
    const { first, others } = this
    if (others === undefined) return first === undefined ? [] : [first]
    return first === undefined ? Array.from(others) : [first, ...others]
  }
}
