/**
 * A text that grows by small pieces. One that is put together piece by piece keeps all of them in a chain, an object for
 * each, which the collector copies while the text grows; here so many are joined at a time. Whoever reads it changes
 * nothing about it.
 */

/** How many are joined at a time. */
const most = 64

export class GrowingText {
  private whole: string
  /** The latest pieces: the first `count` of them. The list is used again. */
  private pieces: Array<string> | undefined
  private count = 0

  constructor(whole = "") {
    this.whole = whole
  }

  add(piece: string): void {
    // Many texts come in one piece.
    if (this.pieces === undefined && this.whole === "") {
      this.whole = piece
      return
    }
    const pieces = this.pieces ??= []
    pieces[this.count++] = piece
    if (this.count < most) return
    this.whole = this.toString()
    this.count = 0
  }

  /** Joins all there is, so that equal texts are equal, whatever their pieces were. */
  settle(): void {
    this.whole = this.toString()
    this.count = 0
    this.pieces = undefined
  }

  get isEmpty(): boolean {
    return this.whole === "" && this.count === 0
  }

  /** The same text, whatever its pieces were. It grows by itself. */
  copy(): GrowingText {
    return new GrowingText(this.toString())
  }

  toString(): string {
    const { count, pieces, whole } = this
    if (pieces === undefined || count === 0) return whole
    return whole + (count === pieces.length ? pieces : pieces.slice(0, count)).join("")
  }
}
