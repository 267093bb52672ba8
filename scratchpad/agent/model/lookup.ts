/**
 * Which file or folder is meant by a name. The name is looked for in a list of files, in any case and with any ending;
 * of several the one that is nearest to the top is meant. Nothing is guessed: what the list does not hold is not there.
 */
import * as AnswerLaws from "./answers.ts"
import * as Conversation from "./conversation.ts"
import * as Intent from "./intent.ts"

/** Where a name leads, as far as the answers tell. */
export type Place =
  | { readonly _tag: "Unknown"; readonly ask: Conversation.Wanted }
  | { readonly _tag: "File"; readonly path: string }
  | { readonly _tag: "Folder"; readonly path: string; readonly files: ReadonlyArray<string> }
  | { readonly _tag: "Nowhere"; readonly error: string | undefined }

/** A path is looked for as it is, anywhere; a bare name may lack its ending, and may be a folder's. */
const globOf = (name: string): string => {
  const bare = name.replace(/\/+$/, "")
  if (bare !== name) return `**/${bare}/**`
  return Intent.isPath(name) ? `**/${name}` : `**/{${name},${name}.*,${name}/**}`
}

const isNamed = (path: string, name: string): boolean => {
  const [file, wanted] = [`/${path.toLowerCase()}`, `/${name.toLowerCase()}`]
  if (Intent.isPath(name)) return file.endsWith(wanted)
  const last = file.slice(file.lastIndexOf("/"))
  return last === wanted || last.startsWith(`${wanted}.`)
}

/** The folder of that name that a file is in. */
const folderIn = (path: string, name: string): string | undefined => {
  const at = `/${path.toLowerCase()}`.indexOf(`/${name.toLowerCase()}/`)
  return at < 0 ? undefined : path.slice(0, at + name.length)
}

/** Where a name leads. */
export const place = (name: string, answers: ReadonlyArray<Conversation.Answered>): Place => {
  const glob = globOf(name)
  const answer = answers.find((answer) => answer.name === "list_files" && answer.arguments["glob"] === glob)
  if (answer === undefined) return { _tag: "Unknown", ask: Conversation.call("list_files", { glob }) }
  if (answer.error !== undefined) return { _tag: "Nowhere", error: answer.error }
  const bare = name.replace(/\/+$/, "")
  const { files } = AnswerLaws.filesOf([answer])
  const file = bare === name ? AnswerLaws.shortest(files.filter((path) => isNamed(path, name))) : undefined
  if (file !== undefined) return { _tag: "File", path: file }
  const folder = AnswerLaws.shortest(files.flatMap((path) => folderIn(path, bare) ?? []))
  return folder === undefined
    ? { _tag: "Nowhere", error: undefined }
    : { _tag: "Folder", path: folder, files: files.filter((path) => path.startsWith(`${folder}/`)) }
}

const countOf = (path: string, answers: ReadonlyArray<Conversation.Answered>): Conversation.Answered | undefined =>
  answers.find((answer) => answer.name === "count_lines" && answer.arguments["path"] === path)

const isMissing = (answer: Conversation.Answered): boolean => answer.error?.includes("there is no such file") === true

/** How far the count of one thing is: a call that gets it further, its answer, or that there is no such thing. */
export type Count =
  | { readonly _tag: "Wanted"; readonly call: Conversation.Wanted }
  | { readonly _tag: "Counted"; readonly answer: Conversation.Answered }
  | { readonly _tag: "Nowhere"; readonly error: string | undefined }

/** How far the count of a thing is. A path is taken at its word first, a name is looked up. */
export const count = (
  name: string,
  glob: string | undefined,
  answers: ReadonlyArray<Conversation.Answered>
): Count => {
  const filter = glob === undefined ? {} : { glob }
  const counting = (path: string): Count => {
    const answer = countOf(path, answers)
    return answer === undefined
      ? { _tag: "Wanted", call: Conversation.call("count_lines", { path, ...filter }) }
      : { _tag: "Counted", answer }
  }
  if (Intent.isPath(name) || name === ".") {
    const first = counting(name)
    if (first._tag !== "Counted" || !isMissing(first.answer)) return first
  }
  const found = place(name, answers)
  if (found._tag === "Unknown") return { _tag: "Wanted", call: found.ask }
  return found._tag === "Nowhere" ? found : counting(found.path)
}
