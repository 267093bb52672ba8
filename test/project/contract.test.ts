/** Holds `docs/contract.md` and the tests to each other: an id means something to its reader, and each promise is tested. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as path from "node:path"

const ids = /\b(?:R|S|B|T|P|C|D|F|K|I|J|L|M|N|O|Q|U|V|W|X|CF)-\d{1,3}\b/g

const titleIds = (text: string): ReadonlyArray<string> => text.match(ids) ?? []

/** The ids that a page explains: those in the first cells of its tables. */
const explained = (page: string): ReadonlyArray<string> =>
  page.split("\n").filter((line) => line.startsWith("|")).flatMap((line) => titleIds(line.split("|")[1] ?? ""))

const files = (folder: string): ReadonlyArray<string> =>
  fs.readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const place = path.join(folder, entry.name)
    if (entry.isDirectory()) return files(place)
    return place.endsWith(".ts") && entry.name !== "contract.test.ts" ? [place] : []
  })

const page = fs.readFileSync("docs/contract.md", "utf8")
const rows = explained(page)
const named = new Set(files("test").flatMap((file) => titleIds(fs.readFileSync(file, "utf8"))))

describe("docs/contract.md", () => {
  it("docs/contract.md explains each id once", () => {
    assert.deepStrictEqual(rows.filter((id, index) => rows.indexOf(id) !== index), [])
  })

  it("docs/contract.md explains each id that a test names", () => {
    // B-00 is the id by which a test shows that an untested id is found.
    assert.deepStrictEqual([...named].filter((id) => !rows.includes(id) && id !== "B-00"), [])
  })

  it("each promise of docs/contract.md has a test", () => {
    // A decision between systems is the default of an option, whose behaviour has ids of its own.
    assert.deepStrictEqual(rows.filter((id) => !id.startsWith("CF-") && !named.has(id)), [])
  })

  it("an id is read from the first cell of its row, and an untested id is found", () => {
    assert.deepStrictEqual(explained("| law 1, U-1 | holds |\n| R-999 | see R-001 |"), ["U-1", "R-999"])
    assert.isFalse(named.has("R-999"))
  })
})
