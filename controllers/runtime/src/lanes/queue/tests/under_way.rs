//! Runs that are under way, and the next of their lane.

use std::time::Instant;

use super::{Ended, FAST, Lane, Queue, STANDARD, ms, next, retry};

#[test]
fn slow_runs_of_a_lane_leave_workers_to_those_before_it() {
    let standard = Lane { most: 2, ..Lane::new("standard") };
    let (mut queue, start) =
        (Queue::new(vec![Lane::new("fast"), standard], retry()), Instant::now());
    for key in ["s1", "s2", "s3"] {
        queue.add(STANDARD, key, start);
    }
    assert_eq!((next(&mut queue, start), next(&mut queue, start)), (Some("s1"), Some("s2")));
    assert_eq!(next(&mut queue, start), None, "two are under way");
    queue.add(FAST, "f", start);
    assert_eq!(next(&mut queue, start), Some("f"));
    // One that moves while it runs still counts for the lane it was taken from.
    queue.move_to(FAST, &"s1", start);
    assert_eq!(next(&mut queue, start), None);
    assert_eq!([FAST, STANDARD].map(|lane| queue.running(lane).count()), [1, 2]);
    queue.finish(&"s1", Ended::Done, start);
    assert_eq!(next(&mut queue, start), Some("s3"));
}

#[test]
fn a_run_keeps_the_next_of_its_lane_from_beginning_but_not_for_long() {
    let standard = Lane { most: 3, apart: ms(100), ..Lane::new("standard") };
    let (mut queue, start) =
        (Queue::new(vec![Lane::new("fast"), standard], retry()), Instant::now());
    for key in ["s1", "s2", "s3", "s4"] {
        queue.add(STANDARD, key, start);
    }
    assert_eq!(next(&mut queue, start), Some("s1"));
    queue.finish(&"s1", Ended::Done, start + ms(10));
    assert_eq!(next(&mut queue, start + ms(10)), Some("s2"), "the first has ended");
    assert_eq!(next(&mut queue, start + ms(109)), None);
    assert_eq!(queue.next_due(start + ms(109)), Some(start + ms(110)));
    queue.add(FAST, "f", start);
    assert_eq!(next(&mut queue, start + ms(50)), Some("f"), "other lanes do not wait for it");
    assert_eq!(next(&mut queue, start + ms(110)), Some("s3"), "the second hangs");
    assert!(queue.set_apart(STANDARD, ms(20)));
    assert!(!queue.set_apart(STANDARD, ms(20)), "no news");
    assert_eq!(next(&mut queue, start + ms(129)), None);
    assert_eq!(next(&mut queue, start + ms(130)), Some("s4"));
    queue.add(STANDARD, "s5", start);
    assert_eq!((next(&mut queue, start + ms(900)), queue.next_due(start + ms(900))), (None, None));
    queue.finish(&"s2", Ended::Failed, start + ms(900));
    assert_eq!(next(&mut queue, start + ms(900)), Some("s5"));
}
