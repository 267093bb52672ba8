/**
 * Agents over HTTP: sessions for browsers, other agents and any other client.
 */
export * as Agent from "./Agent.ts"
export * as Server from "./Server.ts"
