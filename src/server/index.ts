/**
 * Agents over HTTP: sessions for browsers, for other agents and for any client.
 */
export * as Agent from "./Agent.ts"
export * as Server from "./Server.ts"
