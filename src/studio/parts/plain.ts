/** Markdown text on one line, for places without Markdown: the list, and sentences for a screen reader. */

/** Number of characters read: the place cuts the shown text anyway. */
const longest = 400

/** Returns Markdown text on one line, without its signs. A long text is cut, and ends with `…`. */
export const plainOf = (markdown: string, most = 160): string => {
  const text = markdown.slice(0, longest)
    // Line ends go last, so that signs at line beginnings are found.
    .replaceAll(/^ {0,3}(?:#{1,6}|>|[-*+]|```\w*|~~~\w*)(?: +|$)/gm, "")
    // The server keeps a message's last line, which may contain the whole message.
    .replaceAll(/(?<=\s)#{1,6}\s/g, "")
    .replaceAll(/!?\[([^[\]]{0,200})\]\([^()\s]{0,300}\)/g, "$1")
    .replaceAll(/(?<![\p{L}\p{N}\\])([*_~]{1,3}|`{1,3})(?=\S)|(?<=\S)([*_~]{1,3}|`{1,3})(?![\p{L}\p{N}])/gu, "")
    .replaceAll(/\s+/g, " ")
    .trim()
  return text.length <= most && markdown.length <= longest ? text : `${text.slice(0, most).trimEnd()}…`
}
