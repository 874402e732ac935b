//! Steps of Pravega's Rust client: `client-program HOST:PORT`, of the Controller. Writes
//! "passed STEP" for each; the first one that fails ends it with a panic that says why.

use pravega_client::client_factory::ClientFactory;
use pravega_client::event::reader::EventReader;
use pravega_client_config::ClientConfigBuilder;
use pravega_client_shared::{
    Retention, ScaleType, Scaling, Scope, ScopedStream, Stream, StreamConfiguration, Timestamp,
    TransactionStatus, WriterId,
};
use std::collections::HashMap;
use std::io::SeekFrom;
use std::time::Duration;

const SCOPE: &str = "scope";
const KEYS: usize = 17;
const EVENTS: usize = 2_000;
const LARGE: usize = 9 << 20;
const BYTES: usize = 3_000_000;
const UNCONDITIONAL: i64 = -1;

fn main() {
    let address = std::env::args()
        .nth(1)
        .expect("the address of the Controller");
    let config = ClientConfigBuilder::default()
        .controller_uri(address.as_str())
        .build()
        .expect("a configuration");
    let factory = ClientFactory::new(config);
    factory.runtime_handle().block_on(async {
        let scope = Scope::from(SCOPE.to_string());
        let made = factory.controller_client().create_scope(&scope).await;
        assert!(made.expect("created"), "the scope is new");
        events(&factory).await;
        large_event(&factory).await;
        transactions(&factory).await;
        byte_stream(&factory).await;
        table(&factory).await;
        administration(&factory).await;
    });
    // Threads of the client may still wait for what does not come.
    std::process::exit(0);
}

fn named(stream: &str) -> ScopedStream {
    ScopedStream::from(format!("{SCOPE}/{stream}").as_str())
}

async fn create_stream(factory: &ClientFactory, stream: &str, segments: i32) -> ScopedStream {
    let scoped_stream = named(stream);
    let configuration = StreamConfiguration {
        scoped_stream: scoped_stream.clone(),
        scaling: Scaling {
            scale_type: ScaleType::FixedNumSegments,
            min_num_segments: segments,
            ..Scaling::default()
        },
        retention: Retention::default(),
        tags: Some(vec!["red".to_string()]),
    };
    let made = factory
        .controller_client()
        .create_stream(&configuration)
        .await;
    assert!(made.expect("created"), "{stream} is new");
    scoped_stream
}

fn event_of(number: usize) -> (String, Vec<u8>) {
    let key = format!("key{}", number % KEYS);
    let event = format!("{key} {number}").into_bytes();
    (key, event)
}

async fn write(factory: &ClientFactory, stream: &ScopedStream, numbers: std::ops::Range<usize>) {
    let mut writer = factory.create_event_writer(stream.clone());
    for number in numbers {
        let (key, event) = event_of(number);
        // Its outcome is that of `flush`.
        drop(writer.write_event_by_routing_key(key, event).await);
    }
    writer.flush().await.expect("durable");
}

/// Events until there are so many.
async fn take(reader: &mut EventReader, count: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < count {
        if let Some(mut slice) = reader.acquire_segment().await.expect("a segment") {
            found.extend(slice.by_ref().map(|event| event.value));
            reader.release_segment(slice).await.expect("released");
        }
    }
    found
}

/// All numbers are there once, and grow within a key.
fn check_order(found: &[Vec<u8>], count: usize) {
    let mut by_key: HashMap<String, Vec<usize>> = HashMap::new();
    for event in found {
        let text = String::from_utf8(event.clone()).expect("text");
        let (key, number) = text.split_once(' ').expect("a key and a number");
        by_key
            .entry(key.to_string())
            .or_default()
            .push(number.parse().expect("a number"));
    }
    for remainder in 0..KEYS {
        let wanted: Vec<usize> = (remainder..count).step_by(KEYS).collect();
        assert_eq!(
            by_key[&format!("key{remainder}")],
            wanted,
            "events of a key"
        );
    }
    assert_eq!(found.len(), count, "events");
}

/// A second reader goes on where the first one of its group left.
async fn events(factory: &ClientFactory) {
    let stream = create_stream(factory, "events", 4).await;
    write(factory, &stream, 0..EVENTS).await;
    let group = factory
        .create_reader_group("group".to_string(), stream)
        .await;
    let mut first = group.create_reader("first".to_string()).await;
    let mut found = take(&mut first, EVENTS / 4).await;
    first.reader_offline().await.expect("offline");
    let mut second = group.create_reader("second".to_string()).await;
    found.extend(take(&mut second, EVENTS - found.len()).await);
    check_order(&found, EVENTS);
    second.reader_offline().await.expect("offline");
    let scope = Scope::from(SCOPE.to_string());
    factory
        .delete_reader_group(scope, "group".to_string())
        .await
        .expect("deleted");
    println!("passed events");
}

/// One larger than a frame, between two small ones.
async fn large_event(factory: &ClientFactory) {
    let stream = create_stream(factory, "large", 1).await;
    let large: Vec<u8> = (0..LARGE).map(|index| (index % 251) as u8).collect();
    let written = vec![b"before".to_vec(), large, b"after".to_vec()];
    let mut writer = factory.create_event_writer(stream.clone());
    for event in &written {
        let outcome = writer
            .write_event_by_routing_key("key".to_string(), event.clone())
            .await;
        outcome.await.expect("an outcome").expect("durable");
    }
    let group = factory
        .create_reader_group("large-group".to_string(), stream)
        .await;
    let mut reader = group.create_reader("reader".to_string()).await;
    assert!(
        take(&mut reader, written.len()).await == written,
        "the same events"
    );
    println!("passed large_event");
}

/// One is committed, one aborted.
async fn transactions(factory: &ClientFactory) {
    let stream = create_stream(factory, "transactions", 3).await;
    let mut writer = factory
        .create_transactional_event_writer(stream.clone(), WriterId(1))
        .await;
    let mut committed = writer.begin().await.expect("begun");
    let mut aborted = writer.begin().await.expect("begun");
    for number in 0..EVENTS {
        let (key, event) = event_of(number);
        committed
            .write_event(Some(key.clone()), event)
            .await
            .expect("written");
        let event = b"aborted".to_vec();
        aborted
            .write_event(Some(key), event)
            .await
            .expect("written");
    }
    // A task of the client may panic behind it: it finds the segments of its writers gone.
    aborted.abort().await.expect("aborted");
    committed.commit(Timestamp(0)).await.expect("committed");
    for (transaction, wanted) in [
        (&committed, TransactionStatus::Committed),
        (&aborted, TransactionStatus::Aborted),
    ] {
        while transaction.check_status().await.expect("a state") != wanted {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let group = factory
        .create_reader_group("transactions-group".to_string(), stream)
        .await;
    let mut reader = group.create_reader("reader".to_string()).await;
    check_order(&take(&mut reader, EVENTS).await, EVENTS);
    println!("passed transactions");
}

/// Written, read, truncated and sealed.
async fn byte_stream(factory: &ClientFactory) {
    let stream = create_stream(factory, "bytes", 1).await;
    let data: Vec<u8> = (0..BYTES).map(|index| (index % 253) as u8).collect();
    let mut writer = factory.create_byte_writer(stream.clone()).await;
    let mut written = 0;
    while written < BYTES {
        written += writer.write(&data[written..]).await.expect("written");
    }
    writer.flush().await.expect("durable");
    let mut reader = factory.create_byte_reader(stream).await;
    let mut found = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    while found.len() < BYTES {
        let count = reader.read(&mut buffer).await.expect("read");
        found.extend_from_slice(&buffer[..count]);
    }
    assert!(found == data, "the same bytes");
    writer
        .truncate_data_before(BYTES as i64 / 2)
        .await
        .expect("truncated");
    assert_eq!(reader.current_head().await.expect("head"), BYTES as u64 / 2);
    assert_eq!(reader.current_tail().await.expect("tail"), BYTES as u64);
    reader
        .seek(SeekFrom::Start(BYTES as u64 / 2))
        .await
        .expect("sought");
    let count = reader.read(&mut buffer).await.expect("read");
    assert!(
        buffer[..count] == data[BYTES / 2..BYTES / 2 + count],
        "behind the head"
    );
    writer.seal().await.expect("sealed");
    println!("passed byte_stream");
}

/// The client's own tables: conditions, removal.
async fn table(factory: &ClientFactory) {
    let table = factory
        .create_table(Scope::from(SCOPE.to_string()), "table".to_string())
        .await;
    let (key, value) = ("key".to_string(), "value".to_string());
    let version = table
        .insert(&key, &value, UNCONDITIONAL)
        .await
        .expect("inserted");
    let other = "other".to_string();
    let newer = table
        .insert_conditionally(&key, &other, version, UNCONDITIONAL)
        .await;
    let newer = newer.expect("the version is right");
    let refused = table
        .insert_conditionally(&key, &value, version, UNCONDITIONAL)
        .await;
    assert!(refused.is_err(), "the version is not right any more");
    let found = table.get::<String, String>(&key).await.expect("read");
    assert_eq!(found, Some((other, newer)));
    table.remove(&key, UNCONDITIONAL).await.expect("removed");
    assert_eq!(table.get::<String, String>(&key).await.expect("read"), None);
    println!("passed table");
}

/// Tags, sealing, deletion.
async fn administration(factory: &ClientFactory) {
    let controller = factory.controller_client();
    let stream = create_stream(factory, "sealed", 2).await;
    write(factory, &stream, 0..100).await;
    let tags = controller.get_stream_tags(&stream).await.expect("tags");
    assert_eq!(tags, Some(vec!["red".to_string()]));
    assert!(
        controller.delete_stream(&stream).await.is_err(),
        "an open stream stays"
    );
    assert!(controller.seal_stream(&stream).await.expect("sealed"));
    let group = factory
        .create_reader_group("sealed-group".to_string(), stream.clone())
        .await;
    let mut reader = group.create_reader("reader".to_string()).await;
    check_order(&take(&mut reader, 100).await, 100);
    assert!(controller.delete_stream(&stream).await.expect("deleted"));
    assert!(
        !controller
            .check_stream_exists(&stream)
            .await
            .expect("asked"),
        "absent"
    );
    let kept = ScopedStream::new(
        Scope::from(SCOPE.to_string()),
        Stream::from("events".to_string()),
    );
    assert!(
        controller.check_stream_exists(&kept).await.expect("asked"),
        "there"
    );
    println!("passed administration");
}
