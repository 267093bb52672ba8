/**
 * A dimension is one way in which generated runs differ. It is declared in one place: what values it takes, which of them
 * is the plain one, and what a value does to a run. To add one is to add an entry to a table of its kind: generated
 * cases have the field, worlds do what it says, and shrinking goes to the plain value.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"

/** The values that a field of a case takes. Shrinking goes to the first that is listed. */
export interface Dimension<out A> {
  readonly plain: A
  readonly values: Arbitrary.Arbitrary<A>
}

export type Dimensions = { readonly [name: string]: Dimension<unknown> }

/** A value of each dimension of a table. */
export type Point<D extends Dimensions> = {
  readonly [Name in keyof D]: D[Name] extends Dimension<infer A> ? A : never
}

/** One of the values; a value that is listed more often comes up more often. */
export const oneOf = <const A>(...values: ReadonlyArray<A>): Arbitrary.Arbitrary<A> =>
  Arbitrary.map(Arbitrary.schema(Schema.Literals(values.map((_, index) => index))), (index) => values[index] as A)

const of = <A>(plain: A, values: Arbitrary.Arbitrary<A>): Dimension<A> => ({ plain, values })

/** One of the values, of which the first is plain. */
export const among = <const A>(plain: A, ...others: ReadonlyArray<A>): Dimension<A> =>
  of(plain, oneOf(plain, ...others))

/** The plain value three times out of four, and otherwise one of the others. */
export const rarely = <const A>(plain: A, ...others: ReadonlyArray<A>): Dimension<A> =>
  of(plain, oneOf(...others.flatMap(() => [plain, plain, plain]), ...others))

/** The names of a table, of which the first is plain; those of `often` come up more often. */
export const namesOf = <Name extends string>(
  table: { readonly [_ in Name]: unknown },
  often: ReadonlyArray<NoInfer<Name>> = []
): Dimension<Name> => {
  const names = Object.keys(table) as unknown as ReadonlyArray<Name>
  return of(names[0] as Name, oneOf(...names, ...often))
}

/** The names of a table; three times out of four it is the first. */
export const rarelyNamesOf = <Name extends string>(table: { readonly [_ in Name]: unknown }): Dimension<Name> => {
  const [first, ...others] = Object.keys(table) as unknown as ReadonlyArray<Name>
  return rarely(first as Name, ...others)
}

export { of as dimension }

/** A point of generated values. */
export const points = <D extends Dimensions>(table: D): Arbitrary.Arbitrary<Point<D>> =>
  Arbitrary.all(
    Object.fromEntries(Object.entries(table).map(([name, { values }]) => [name, values]))
  ) as unknown as Arbitrary.Arbitrary<Point<D>>

/** The point at which everything is plain. */
export const plainPoint = <D extends Dimensions>(table: D): Point<D> =>
  Object.fromEntries(Object.entries(table).map(([name, { plain }]) => [name, plain])) as Point<D>
