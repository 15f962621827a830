// Receives webhooks, and takes those that the secret in WEBHOOK_SECRET signed. Needs: npm install (see package.json).
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);

// 2xx only for what is verified and kept: what is refused comes again.
const server = createServer(async (request, response) => {
  const chunks = await request.toArray();
  try {
    const event = webhook.verify(Buffer.concat(chunks), request.headers);
    console.log(request.headers["webhook-id"], event.type); // the id is the same on every attempt: drop a second one
    response.writeHead(204).end();
  } catch {
    response.writeHead(400).end("not signed by the secret of this receiver\n");
  }
});

server.listen(process.env.PORT ?? 8080, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
