// amqplib as its users write it, run by `test_amqplib`; prints what came as JSON.
"use strict";
const amqp = require("amqplib");

const COUNT = 50;

async function main(url) {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange("node-orders", "topic", { durable: true });
  await channel.assertQueue("node-new", { durable: true });
  await channel.bindQueue("node-new", "node-orders", "orders.*");
  await channel.prefetch(10);
  for (let n = 0; n < COUNT; n++) {
    channel.publish("node-orders", "orders.new", Buffer.from(String(n)), { persistent: true });
  }
  await channel.waitForConfirms();

  const got = [];
  await new Promise((resolve) => {
    channel.consume("node-new", (message) => {
      got.push(Number(message.content));
      channel.ack(message);
      if (got.length === COUNT) resolve();
    }, { consumerTag: "worker" });
  });
  await channel.cancel("worker");

  // a request over direct reply-to
  const answer = new Promise((resolve) => {
    channel.consume("amq.rabbitmq.reply-to", (message) => resolve(String(message.content)), { noAck: true });
  });
  await channel.assertQueue("node-double");
  await channel.consume("node-double", (message) => {
    channel.sendToQueue(message.properties.replyTo, Buffer.from(String(2 * Number(message.content))));
    channel.ack(message);
  });
  channel.sendToQueue("node-double", Buffer.from("21"), { replyTo: "amq.rabbitmq.reply-to" });

  // a consumer whose queue goes, on the same channel: delete-ok, then null
  await channel.assertQueue("node-gone");
  const cancelled = new Promise((resolve) => {
    channel.consume("node-gone", (message) => resolve(message === null));
  });
  await channel.deleteQueue("node-gone");

  const said = { got, answer: await answer, cancelled: await cancelled };

  // a channel that is closed for a mistake, and a connection that goes on
  const wrong = await connection.createChannel();
  wrong.on("error", (error) => { said.code = error.code; });
  await wrong.checkQueue("node-nowhere").catch(() => undefined);

  await channel.close();
  await connection.close(); // once it never came back
  console.log(JSON.stringify(said));
}

main(process.argv[2]).catch((error) => { console.error(error); process.exit(1); });
