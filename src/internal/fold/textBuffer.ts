/**
 * A text that grows by small pieces: what a model says, or the arguments of a call. A string that grows by `+=` keeps an
 * object for each piece until it is read, which the garbage collector copies meanwhile. Here 64 pieces are joined at a time.
 */

/** How many pieces are joined at a time. */
const joined = 64

export class TextBuffer {
  private whole: string
  private pieces: Array<string> = []

  constructor(whole = "") {
    this.whole = whole
  }

  add(piece: string): void {
    this.pieces.push(piece)
    if (this.pieces.length === joined) this.settle()
  }

  /** Joins all there is, so that equal texts are equal, whatever their pieces were. */
  settle(): void {
    if (this.pieces.length === 0) return
    this.whole = this.toString()
    this.pieces = []
  }

  get isEmpty(): boolean {
    return this.toString() === ""
  }

  /** The same text, which grows by itself. */
  copy(): TextBuffer {
    return new TextBuffer(this.toString())
  }

  toString(): string {
    return this.pieces.length === 0 ? this.whole : this.whole + this.pieces.join("")
  }
}
