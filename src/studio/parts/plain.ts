/** The text of Markdown on one line, for places that show no Markdown: the list, and sentences for a screen reader. */

/** Number of characters that are read: what is shown is cut by its place anyway. */
const longest = 400

/** Returns the text of Markdown on one line, without its signs. A long text is cut, with `…` behind it. */
export const plainOf = (markdown: string, most = 160): string => {
  const text = markdown.slice(0, longest)
    // Line ends go last, so that the signs at the beginnings of lines are found.
    .replaceAll(/^ {0,3}(?:#{1,6}|>|[-*+]|```\w*|~~~\w*)(?: +|$)/gm, "")
    // The server keeps the last line of a message, which may be all of it on one line.
    .replaceAll(/(?<=\s)#{1,6}\s/g, "")
    .replaceAll(/!?\[([^[\]]{0,200})\]\([^()\s]{0,300}\)/g, "$1")
    .replaceAll(/(?<![\p{L}\p{N}\\])([*_~]{1,3}|`{1,3})(?=\S)|(?<=\S)([*_~]{1,3}|`{1,3})(?![\p{L}\p{N}])/gu, "")
    .replaceAll(/\s+/g, " ")
    .trim()
  return text.length <= most && markdown.length <= longest ? text : `${text.slice(0, most).trimEnd()}…`
}
